-- Counts client addresses in the store inside: a function call, no socket, no pool.

local store = core.redis("main")

core.register_action("accounting", { "http-req", "http-res", "tcp-req", "tcp-res" }, function(txn)
    store:incrby(txn.sf:src(), 1)
end)
