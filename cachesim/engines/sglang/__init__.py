"""SGLang: a scheduler over a radix tree whose nodes may hold states and window slots.

rules, profiles            the releases' and patches' differences, as data
options                    the server's flags
node, pools                nodes, lists of last use; slots for tokens, windows and states
tree                       what every tree does
radix, mamba_radix, window_radix                   one tree for each kind of model (0.5.9)
unified, unified_insert, unified_evict             one tree for all kinds (0.5.23)
host_pool                  slots on the host, and copies that are under way
hi_radix                   a host beside attention (0.5.9)
host_evict, host_backup, unified_host              a host beside every part (0.5.23)
request, states            requests and batches of them; where their states are saved
adder, allocation, scheduler                       who goes into the next batch, with which slots
contents, runner           what lies in the slots, and the network over it
seen, account              why not more was reused
server                     the engine: requests in, replies and events out
"""
