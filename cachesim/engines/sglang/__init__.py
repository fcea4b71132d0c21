"""SGLang: a scheduler over a radix tree whose nodes may hold states and window slots.

node, pools                nodes, lists of last use; slots for tokens, windows and states
tree                       methods of every tree
radix                      one tree for each kind of model (0.5.9)
unified_core, unified      one tree for all kinds (0.5.22): its nodes, and what requests leave in it
hi_radix                   a host and a storage beside attention (0.5.9)
hicache                    a host beside every part (0.5.22)
storage_threads            what the storage's threads do
request                    requests and batches of them; where their states are saved
sessions                   requests that continue an earlier one
schedule_policy, scheduler                         who goes into the next batch, with which slots
runner                     the content of the slots, and the network over it
"""
