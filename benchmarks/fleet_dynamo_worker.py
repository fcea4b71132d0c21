"""Dynamo's selection core, order by order; runs with the wheel's own environment."""

import asyncio
import json
import struct
import sys
import time
from typing import Any

import msgspec  # type: ignore[import-not-found]
import zmq  # type: ignore[import-not-found]
from dynamo._core import SelectionService, run_mocker_trace_replay  # type: ignore[import-not-found]

MODEL = "m"
MASK = (1 << 63) - 1


class Core:
    """A selection service, and a publisher of events for each replica."""

    async def start(self, order: dict[str, Any]) -> dict[str, Any]:
        """Register the replicas."""
        self.block = order["block"]
        self.service = SelectionService(indexer_threads=1)
        self.context = zmq.Context()
        self.publishers = []
        for number in range(order["replicas"]):
            socket = self.context.socket(zmq.PUB)
            socket.setsockopt(zmq.SNDHWM, 0)
            port = socket.bind_to_random_port("tcp://127.0.0.1")
            self.publishers.append([socket, 0])
            await self.service.upsert_worker(
                {
                    "worker_id": number,
                    "model_name": MODEL,
                    "endpoint": "x",
                    "block_size": self.block,
                    "kv_events_endpoint": f"tcp://127.0.0.1:{port}",
                    "total_kv_blocks": 100_000,
                    "max_num_batched_tokens": 8192,
                }
            )
        await asyncio.sleep(1.0)  # a subscriber that comes later misses the first events
        return {}

    def publish(self, replica: int, events: list[Any]) -> None:
        """A batch of events, as vLLM publishes it."""
        socket, count = self.publishers[replica]
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        socket.send_multipart([b"", struct.pack(">Q", count), payload])
        self.publishers[replica][1] += 1

    async def stored(self, order: dict[str, Any]) -> dict[str, Any]:
        """Each block in an event of its own, with its tokens."""
        events = [
            [
                "BlockStored",
                [key & MASK],
                None if parent is None else parent & MASK,
                tokens,
                self.block,
                None,
                "GPU",
                None,
            ]
            for key, parent, tokens in order["blocks"]
        ]
        if events:
            self.publish(order["replica"], events)
        return {}

    async def removed(self, order: dict[str, Any]) -> dict[str, Any]:
        """Publish removed blocks."""
        if order["blocks"]:
            hashes = [key & MASK for key in order["blocks"]]
            self.publish(order["replica"], [["BlockRemoved", hashes, "GPU"]])
        return {}

    async def select(self, order: dict[str, Any]) -> dict[str, Any]:
        """The choice, once the index has heard of all events; it is booked."""
        asked = {"model_name": MODEL, "token_ids": order["tokens"]}
        overlaps: list[int] = []
        for _ in range(400):
            found = await self.service.overlap_scores(asked)
            known = {worker["worker_id"]: worker["device_blocks"] for worker in found["workers"]}
            overlaps = [known.get(number, 0) for number in range(len(self.publishers))]
            if overlaps == order["overlaps"]:
                break
            await asyncio.sleep(0.005)
        name = f"r{order['request']}"
        chosen = await self.service.select_and_reserve({**asked, "selection_id": name})
        return {"replica": chosen["worker_id"], "overlaps": overlaps}

    async def replay(self, order: dict[str, Any]) -> dict[str, Any]:
        """Tokens that DynoSim's vLLM reuses of a trace."""
        engine = {"backend": "vllm", "num_gpu_blocks": order["blocks"], "block_size": 16}
        found = run_mocker_trace_replay(
            [order["trace"]],
            extra_engine_args={"engine": engine},
            trace_block_size=16,
            capture_per_request=True,
        )
        return {"reused": sum(each["reused_input_tokens"] for each in found.per_request)}

    async def prefilled(self, order: dict[str, Any]) -> dict[str, Any]:
        """A prompt has run."""
        await self.service.prefill_complete(f"r{order['request']}")
        return {}

    async def finished(self, order: dict[str, Any]) -> dict[str, Any]:
        """A request has ended."""
        await self.service.free_reservation(f"r{order['request']}")
        return {}


async def main() -> None:
    """Answer orders until the input ends."""
    core = Core()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        try:
            answer = await getattr(core, order["do"])(order)
        except Exception as error:  # noqa: BLE001 - whatever is raised there is the answer
            answer = {"error": f"{order['do']}: {error!r}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
