-- A pool of connections over core.tcp, in the shape that the post "HAProxy, Lua & Redis: Connection pool" made known:
-- a connection is counted before it is made, because connecting lets other requests run; a request without a free one
-- retries every 50 ms. A broken connection is closed and uncounted by the request that used it.

local fifo = require("fifo")

local pool = {}
pool.__index = pool

local POLL_MS = 50

-- `wrap(tcp)` returns the object that the pool hands out for a new connection.
function pool.new(host, port, size, wrap)
    return setmetatable({ host = host, port = port, size = size, wrap = wrap, made = 0, free = fifo.new() }, pool)
end

local function connect(self)
    self.made = self.made + 1
    local tcp = core.tcp()
    tcp:settimeout(5)
    if tcp:connect(self.host, self.port) == nil then
        tcp:close()
        self.made = self.made - 1
        return nil
    end
    return { tcp = tcp, client = self.wrap(tcp) }
end

-- A connection, or nil if none came free within `wait_ms`.
function pool:get(wait_ms)
    local waited = 0
    while true do
        local connection = self.free:pop()
        if connection == nil and self.made < self.size then
            connection = connect(self)
        end
        if connection ~= nil then
            return connection
        end
        if waited >= wait_ms then
            return nil
        end
        core.msleep(POLL_MS)
        waited = waited + POLL_MS
    end
end

function pool:release(connection)
    self.free:push(connection)
end

function pool:discard(connection)
    connection.tcp:close()
    self.made = self.made - 1
end

return pool
