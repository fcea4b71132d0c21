"""Laws that the cache of any server has to keep, asked of a whole real server over HTTP.

laws        the laws, each with its sentence
workloads   fixed requests that ask for each law
examiner    one server and one model: the fixed requests, then the search of `probe`
result      the table of laws and models, with what was found
formats     the table as JSON, JUnit XML and SARIF
command     settings, and the run over all models of a server
"""
