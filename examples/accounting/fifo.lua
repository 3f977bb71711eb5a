-- A queue: push at one end, pop at the other, both in constant time.

local fifo = {}
fifo.__index = fifo

function fifo.new()
    return setmetatable({ first = 1, last = 0 }, fifo)
end

function fifo:push(value)
    self.last = self.last + 1
    self[self.last] = value
end

function fifo:pop()
    if self.first > self.last then
        return nil
    end
    local value = self[self.first]
    self[self.first] = nil
    self.first = self.first + 1
    return value
end

return fifo
