-- Finds the players among the ten best in at least half of the rooms and stores them in the set KEYS[1]; the further
-- KEYS are the rooms' leaderboards. Returns the number of these players.
--
-- All rooms are read at the same moment, whichever workers serve them.
local found = {}
for room = 2, #KEYS do
  for _, player in ipairs(redis.call('ZREVRANGE', KEYS[room], 0, 9)) do
    found[player] = (found[player] or 0) + 1
  end
end
redis.call('DEL', KEYS[1])
local rooms = #KEYS - 1
for player, times in pairs(found) do
  if times * 2 >= rooms then
    redis.call('SADD', KEYS[1], player)
  end
end
return redis.call('SCARD', KEYS[1])
