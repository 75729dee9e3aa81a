-- Wireshark dissector of Rivulet packets (docs/wire-format.md).
-- Install: copy it into a personal plugin folder (Help > About > Folders), or `tshark -X lua_script:rivulet.lua`.
-- It is a post-dissector: it decodes every segment whose first TCP option is Rivulet's, at any port, and
-- `rivulet.tag`, `rivulet.number` and the other fields work in display filters.

local rivulet = Proto("rivulet", "Rivulet")

local CLASSES = {
  [0x00] = "SYN", [0x01] = "NORMAL", [0x02] = "PROBE", [0x03] = "TIMEOUT", [0x04] = "RESTART", [0x05] = "REKEY",
  [0x06] = "CLOSE", [0x80] = "DATA", [0x81] = "RETRANSMISSION", [0x82] = "GROUP", [0x83] = "SKIP", [0x84] = "WAIT",
  [0x85] = "NOT_MINE", [0x86] = "CHALLENGE", [0x87] = "INPUT", [0x88] = "ERROR",
}
local KINDS = { [0] = "ORIGINAL", [1] = "RETRANSMITTED", [2] = "MARK" }

local f = {}
local function field(name, kind, title, ...)
  f[name] = ProtoField[kind]("rivulet." .. name, title, ...)
end

field("class", "uint8", "Class", base.HEX, CLASSES)
field("version", "uint8", "Version", base.DEC)
field("number_low", "uint16", "Number, low half", base.DEC)
field("tor_time", "uint64", "ToR time (us)", base.DEC)
field("tor_id", "uint16", "ToR id", base.HEX)
field("tor_seal_epoch", "uint16", "Newest usable seal epoch", base.DEC)
field("tor_nonce_epoch", "uint16", "Newest usable nonce epoch", base.DEC)
field("tor_flags", "uint8", "ToR flags", base.HEX)
field("checked", "bool", "The sums are right", 8, nil, 0x01)
field("time_valid", "bool", "The time is the common clock", 8, nil, 0x02)
field("tor_key_epoch", "uint8", "Key epoch of the ToR's tag, low half", base.DEC)
field("tor_tag", "uint32", "Tag of the ToR block", base.HEX)
field("range_count", "uint8", "Proof entries", base.DEC)
field("attempt", "uint8", "Attempt", base.DEC)
field("tag", "uint32", "Connection tag", base.HEX)
field("number", "uint32", "Number", base.DEC)
field("base", "uint32", "Base of the proof", base.DEC)
field("time", "uint64", "Time sealed (us)", base.DEC)
field("nonce_epoch", "uint16", "Nonce epoch", base.DEC)
field("seal_epoch", "uint16", "Seal epoch", base.DEC)
field("generation", "uint16", "Generation", base.DEC)
field("sealed_tor_id", "uint16", "ToR that stamped the time", base.HEX)
field("tcp_base", "uint32", "TCPBase", base.DEC)
field("start_cwnd", "uint16", "startCwnd", base.DEC)
field("ssthresh", "uint16", "ssthresh", base.DEC)
field("wire_base", "uint32", "Wire base", base.DEC)
field("mss", "uint16", "MSS", base.DEC)
field("flags", "uint8", "Continuation flags", base.HEX)
field("gain", "uint8", "Gain of a window given back, or Cubic's clock", base.DEC)
field("srtt", "uint32", "SRTT (us)", base.DEC)
field("connection", "uint64", "Connection", base.HEX)
field("mac", "bytes", "MAC")
field("entry", "string", "Entry")
field("hold", "uint16", "Hold (64 us)", base.DEC)
field("covers", "uint8", "Numbers answered", base.DEC)
field("want", "string", "Want")
field("retire", "string", "Window")
field("token", "bytes", "Token")
field("ucont", "bytes", "User continuation")
field("input", "string", "Input")
field("data", "bytes", "Data")
field("nonce", "uint32", "Nonce", base.HEX)
field("content", "uint8", "Content", base.HEX)
field("answers", "uint8", "Answers (low 8 bits)", base.DEC)
field("delta", "bytes", "Delta continuation")
field("offset", "uint64", "Stream offset", base.DEC)
field("consumed", "string", "Input consumed")
field("code", "uint16", "Code", base.DEC)
field("wait", "uint16", "Ask again in (ms)", base.DEC)
field("skip", "string", "Skipped")
field("member", "bytes", "Group member")

local list = {}
for _, one in pairs(f) do list[#list + 1] = one end
rivulet.fields = list
local malformed = ProtoExpert.new("rivulet.malformed", "Shorter than its fields say", expert.group.MALFORMED, expert.severity.ERROR)
local cut = ProtoExpert.new("rivulet.cut", "The capture has only its beginning", expert.group.UNDECODED, expert.severity.NOTE)
rivulet.experts = { malformed, cut }

local tcp_options = Field.new("tcp.options")
local tcp_payload = Field.new("tcp.payload")
local tcp_length = Field.new("tcp.len")

-- A reader that never runs past the end: `take` returns a range, or nil, after which nothing more is decoded.
local function reader(buffer)
  local self = { at = 0, short = false }
  function self.take(length)
    if self.short or self.at + length > buffer:len() then
      self.short = true
      return nil
    end
    local range = buffer(self.at, length)
    self.at = self.at + length
    return range
  end
  function self.left() return buffer:len() - self.at end
  function self.rest() return self.left() > 0 and self.take(self.left()) or nil end
  return self
end

local function add(tree, r, name, length)
  local range = r.take(length)
  if range and tree then tree:add(f[name], range) end
  return range
end

local function sealed_head(tree, r)
  for _, one in ipairs({ { "tag", 4 }, { "number", 4 }, { "base", 4 }, { "time", 6 }, { "nonce_epoch", 2 } }) do
    add(tree, r, one[1], one[2])
  end
end

local function sealed_tail(tree, r)
  for _, one in ipairs({
    { "seal_epoch", 2 }, { "generation", 2 }, { "sealed_tor_id", 2 }, { "tcp_base", 4 },
    { "start_cwnd", 2 }, { "ssthresh", 2 }, { "wire_base", 4 }, { "mss", 2 }, { "flags", 1 },
    { "gain", 1 },
  }) do
    add(tree, r, one[1], one[2])
  end
  add(tree, r, "srtt", 4)
  add(tree, r, "connection", 8)
  add(tree, r, "mac", 12)
end

local function tor_block(tree, r)
  local range = r.take(18)
  if not range then return end
  local sub = tree:add(rivulet, range, "ToR block")
  sub:add(f.tor_time, range(0, 6))
  sub:add(f.tor_id, range(6, 2))
  sub:add(f.tor_seal_epoch, range(8, 2))
  sub:add(f.tor_nonce_epoch, range(10, 2))
  sub:add(f.tor_flags, range(12, 1))
  sub:add(f.checked, range(12, 1))
  sub:add(f.time_valid, range(12, 1))
  sub:add(f.tor_key_epoch, range(13, 1))
  sub:add(f.tor_tag, range(14, 4))
end

local function counted(tree, r, name, width)
  local length = r.take(width)
  if not length then return end
  local range = r.take(length:uint())
  if range then tree:add(f[name], range) end
end

local function request(tree, r, class)
  tor_block(tree, r)
  local count = add(tree, r, "range_count", 1)
  add(tree, r, "attempt", 1)
  local kinds = r.take(4)
  if r.short then return end
  if class ~= 0x00 then
    local sub = tree:add(rivulet, "Transport continuation")
    sealed_head(sub, r)
    for i = 0, count:uint() - 1 do
      local range = r.take(8)
      if not range then return end
      local kind = i < 16 and kinds:bitfield(2 * i, 2) or 0
      local words = string.format("%s [base+%d, base+%d] sum 0x%08x", KINDS[kind], range(0, 2):uint(), range(2, 2):uint(), range(4, 4):uint())
      tree:add(f.entry, range, words)
    end
    sealed_tail(sub, r)
  end
  add(tree, r, "hold", 2)
  add(tree, r, "covers", 1)
  local wants, uconts, flags = r.take(1), r.take(1), r.take(1)
  if not flags then return end
  for _ = 1, wants:uint() do
    local range = r.take(16)
    if not range then return end
    local repeated = bit.band(range(13, 1):uint(), 1) ~= 0 and ", retransmission" or ""
    tree:add(f.want, range, string.format("%d bytes at %s%s", range(8, 4):uint(), tostring(range(0, 8):uint64()), repeated))
  end
  local body = flags:uint()
  if bit.band(body, 0x10) ~= 0 then tree:add(f.retire, flags, "given back for a token") end
  if bit.band(body, 0x02) ~= 0 then counted(tree, r, "token", 1) end
  if bit.band(body, 0x08) ~= 0 then r.take(18) end
  for _ = 1, uconts:uint() do counted(tree, r, "ucont", 2) end
  if bit.band(body, 0x01) ~= 0 then
    local head = r.take(14)
    if not head then return end
    local ending = bit.band(head(2, 1):uint(), 1) ~= 0 and ", end" or ""
    local words = string.format("stream %d, %d bytes at %s%s", head(0, 2):uint(), head(12, 2):uint(), tostring(head(4, 8):uint64()), ending)
    tree:add(f.input, head, words)
    local data = r.take(head(12, 2):uint())
    if data and data:len() > 0 then tree:add(f.data, data) end
  end
end

local function delta_length(bitmap)
  local length = 0
  for _, one in ipairs({ { 0x01, 4 }, { 0x02, 6 }, { 0x04, 2 }, { 0x08, 2 }, { 0x10, 2 }, { 0x20, 4 }, { 0x40, 1 } }) do
    if bit.band(bitmap, one[1]) ~= 0 then length = length + one[2] end
  end
  return length + 2 + 12
end

local function response(tree, r, class)
  add(tree, r, "number", 4)
  add(tree, r, "nonce", 4)
  local content = add(tree, r, "content", 1)
  add(tree, r, "answers", 1)
  if r.short then return end
  local has = function(mask) return bit.band(content:uint(), mask) ~= 0 end
  if has(0x01) then
    local sub = tree:add(rivulet, "Transport continuation")
    sealed_head(sub, r)
    sealed_tail(sub, r)
  end
  if has(0x02) then
    local bitmap = r.take(1)
    if not bitmap then return end
    add(tree, r, "delta", delta_length(bitmap:uint()))
  end
  if has(0x08) then add(tree, r, "offset", 8) end
  if has(0x04) then
    local count = r.take(1)
    if not count then return end
    for _ = 1, count:uint() do counted(tree, r, "ucont", 2) end
  end
  if has(0x40) then
    local range = r.take(10)
    if not range then return end
    tree:add(f.consumed, range, string.format("stream %d up to %s", range(0, 2):uint(), tostring(range(2, 8):uint64())))
  end
  if has(0x80) then counted(tree, r, "token", 1) end
  if class == 0x82 then
    local count = r.take(1)
    if not count then return end
    for _ = 1, count:uint() do add(tree, r, "member", 70) end
  elseif class == 0x83 then
    local range = r.take(16)
    if not range then return end
    tree:add(f.skip, range, string.format("%s bytes from %s", tostring(range(8, 8):uint64()), tostring(range(0, 8):uint64())))
  elseif class == 0x84 then
    add(tree, r, "wait", 2)
  elseif class == 0x85 or class == 0x88 then
    add(tree, r, "code", 2)
  elseif class == 0x86 then
    counted(tree, r, "token", 1)
  end
  local data = r.rest()
  if data then tree:add(f.data, data) end
end

function rivulet.dissector(_, pinfo, root)
  local options = tcp_options()
  if not options then return end
  local option = options.range
  if option:len() < 8 or option(0, 2):uint() ~= 0xfd08 or option(2, 2):uint() ~= 0x5256 then return end
  local class = option(4, 1):uint()
  local name = CLASSES[class] or string.format("class 0x%02x", class)
  local tree = root:add(rivulet, option(0, 8), "Rivulet, " .. name)
  tree:add(f.class, option(4, 1))
  tree:add(f.version, option(5, 1), bit.rshift(option(5, 1):uint(), 4))
  tree:add(f.number_low, option(6, 2))
  pinfo.cols.protocol = "Rivulet"
  pinfo.cols.info = string.format("%s %d", name, option(6, 2):uint())
  local payload = tcp_payload()
  if not payload then return end
  local body = payload.range
  local r = reader(body:tvb())
  if class < 0x80 then request(tree, r, class) else response(tree, r, class) end
  local sent = tcp_length()
  if sent and body:len() < sent.value then
    tree:add_proto_expert_info(cut)
  elseif r.short then
    tree:add_proto_expert_info(malformed)
  end
end

register_postdissector(rivulet)
