-- The cost of a connection per command, as the post "Redis Reconnection Overhead" measured it: 50,000 keys are set
-- over connections that stay, then each over a connection of its own, and both times are printed in the post's columns.

local count = tonumber(os.getenv("COUNT") or "50000")
local host = os.getenv("REDIS_HOST") or "127.0.0.1"
local port = tonumber(os.getenv("REDIS_PORT") or "6379")

local redis = core.redis("data")

-- Over the section's connection.
local function reuse(key, value)
    redis:set(key, value)
end

-- Over one that is made for this command.
local function new(key, value)
    local tcp = core.tcp()
    tcp:settimeout(5)
    assert(tcp:connect(host, port), "no connection to Redis")
    tcp:send(string.format("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", #key, key, #value, value))
    assert(tcp:receive("*l") == "+OK", "Redis did not set a key")
    tcp:close()
end

-- CPU time of this process: user, system; seconds.
local function cpu()
    local file = assert(io.open("/proc/self/stat"))
    local fields = {}
    for field in file:read("a"):match("%) (.*)"):gmatch("%S+") do
        fields[#fields + 1] = field
    end
    file:close()
    return fields[12] / 100, fields[13] / 100
end

local function clock()
    local time = core.now()
    return time.sec + time.usec / 1e6
end

local function measure(name, set)
    local user, system, began = cpu()
    began = clock()
    for number = 0, count - 1 do
        set(tostring(number), tostring(number + 5))
    end
    local real = clock() - began
    local user_after, system_after = cpu()
    user, system = user_after - user, system_after - system
    print(string.format("%-11s%11.6f%11.6f%11.6f (%11.6f)", name, user, system, user + system, real))
end

core.register_task(function()
    local pong, problem = redis:pcall("PING")
    if not pong then
        print(string.format("No Redis at %s:%d (%s).", host, port, tostring(problem)))
        print("Start redis-server, or name another one with REDIS_HOST and REDIS_PORT. Ctrl-C ends this example.")
        io.stdout:flush()
        return
    end
    print(string.format("%-11s%11s%11s%11s%14s", "", "user", "system", "total", "real"))
    measure("reuse redis", reuse)
    measure("new redis", new)
    print("Done. Ctrl-C ends this example.")
    io.stdout:flush()
end)
