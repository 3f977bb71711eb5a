-- Counts client addresses in an external Redis by redis-lua (Debian: lua-redis) over a pool of 20 connections.

local redis = require("redis")
local pool = require("pool")

local host = os.getenv("REDIS_HOST") or "127.0.0.1"
local port = tonumber(os.getenv("REDIS_PORT") or "6379")

local connections = pool.new(host, port, 20, function(tcp)
    return redis.connect({ socket = tcp })
end)

core.register_action("accounting", { "http-req", "http-res", "tcp-req", "tcp-res" }, function(txn)
    local ip = txn.sf:src()
    local connection = connections:get(1000)
    if connection == nil then
        txn:Warning("no connection to Redis within 1 s: " .. ip .. " is not counted")
        return
    end
    if pcall(connection.client.incrby, connection.client, ip, 1) then
        connections:release(connection)
    else
        connections:discard(connection)
    end
end)
