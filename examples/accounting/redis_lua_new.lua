-- Counts client addresses in an external Redis by redis-lua (Debian: lua-redis), with a new connection per request.

local redis = require("redis")

local host = os.getenv("REDIS_HOST") or "127.0.0.1"
local port = tonumber(os.getenv("REDIS_PORT") or "6379")

core.register_action("accounting", { "http-req", "http-res", "tcp-req", "tcp-res" }, function(txn)
    local tcp = core.tcp()
    tcp:settimeout(5)
    if tcp:connect(host, port) == nil then
        txn:Warning("no connection to Redis: " .. txn.sf:src() .. " is not counted")
        return
    end
    local client = redis.connect({ socket = tcp })
    pcall(client.incrby, client, txn.sf:src(), 1)
    tcp:close()
end)
