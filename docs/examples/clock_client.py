"""A client with a clock in its system prompt, for docs/howto/record-your-client.md."""

import sys
import time
from datetime import UTC, datetime

from openai import OpenAI

RULES = "Answer in one line. Be kind. Say so where you do not know. " * 20
QUESTIONS = ("Where is the file?", "What is in it?", "Who wrote it?", "And when?")

client = OpenAI(base_url=sys.argv[1], api_key="none")
history: list[dict[str, str]] = []
for question in QUESTIONS:
    system = f"You are a careful assistant. It is {datetime.now(UTC):%H:%M:%S}. {RULES}"
    history.append({"role": "user", "content": question})
    answer = client.chat.completions.create(
        model="toy", messages=[{"role": "system", "content": system}, *history], max_tokens=12
    )
    history.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
    time.sleep(2)
