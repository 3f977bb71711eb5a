-- Pushes the numbers from 1 to ARGV[1] to the list KEYS[1] and returns its length.
--
-- With a large number it runs for long: the list is held until the end, and clients of other keys go on.
for number = 1, tonumber(ARGV[1]) do
  redis.call('LPUSH', KEYS[1], number)
end
return redis.call('LLEN', KEYS[1])
