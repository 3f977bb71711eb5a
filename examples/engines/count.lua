-- Counts client addresses in whatever the section "data" is: a store, or an engine in another process.

local data = core.redis("data")

-- The request waits for the count.
core.register_action("count", { "http-req" }, function(txn)
    data:incrby(txn.sf:src(), 1)
end)

-- It does not: the command is sent, and an error is counted.
core.register_action("count_later", { "http-req" }, function(txn)
    data:acall("INCRBY", txn.sf:src(), 1)
end)
