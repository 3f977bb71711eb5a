-- Counts client addresses in an external Redis by redis-lua (Debian: lua-redis) over connections that are kept: each worker
-- has a pool named "accounts" of at most 20, which rest for a minute.

local redis = require("redis")

local host = os.getenv("REDIS_HOST") or "127.0.0.1"
local port = tonumber(os.getenv("REDIS_PORT") or "6379")

core.register_action("accounting", { "http-req", "http-res", "tcp-req", "tcp-res" }, function(txn)
    local tcp = core.tcp()
    if not tcp:connect(host, port, { pool = "accounts" }) then
        txn:Warning("no connection to Redis: " .. txn.sf:src() .. " is not counted")
        return
    end
    local client = redis.connect({ socket = tcp })
    if pcall(client.incrby, client, txn.sf:src(), 1) then
        tcp:setkeepalive("accounts", 20, 60)
    else
        tcp:close()
    end
end)
