"""A live server's cache, tested over HTTP by one law: an answer from cache is the uncached one.

connection   requests and answers, bounded in number, rate, tokens and time
dialects     request bodies and answers of each kind of server, and their detection
process      a server's own process: start, restart, end
target       requests, uncached answers and resets of one server
answers      answers, and the distance of two
judging      noise, the limit and the sequential test
profiles     simulated releases that explain the cached counts so far
shapes       lengths and equal prefixes of the user's own requests
running      a workload on the server, each answer compared with the uncached one
loop         the whole run: detection, calibration, search, shrinking
result       the verdict in words, the report, JSON
"""
