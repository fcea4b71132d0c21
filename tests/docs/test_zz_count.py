from tests.docs.test_words import *
from tests.docs import test_words as w
def test_x(monkeypatch):
    n = w.words_of_sources(monkeypatch)
    print("TOTAL", sum(n.values()), {k: v for k, v in n.items() if "replay-and" in k or "commands" in k or "cli" in k or "reference" in k})
