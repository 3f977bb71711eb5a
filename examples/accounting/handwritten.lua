-- Counts client addresses in an external Redis over a pool, speaking the protocol itself.

local pool = require("pool")

local host = os.getenv("REDIS_HOST") or "127.0.0.1"
local port = tonumber(os.getenv("REDIS_PORT") or "6379")

local connections = pool.new(host, port, 20, function(tcp)
    return tcp
end)

core.register_action("accounting", { "http-req", "http-res", "tcp-req", "tcp-res" }, function(txn)
    local ip = txn.sf:src()
    local connection = connections:get(1000)
    if connection == nil then
        txn:Warning("no connection to Redis within 1 s: " .. ip .. " is not counted")
        return
    end
    local tcp = connection.client
    local sent = tcp:send("*3\r\n$6\r\nINCRBY\r\n$" .. #ip .. "\r\n" .. ip .. "\r\n$1\r\n1\r\n")
    -- An integer reply is one line; a line of any other reply would leave the rest in the socket.
    if sent ~= nil and sent > 0 and (tcp:receive() or ""):sub(1, 1) == ":" then
        connections:release(connection)
    else
        connections:discard(connection)
    end
end)
