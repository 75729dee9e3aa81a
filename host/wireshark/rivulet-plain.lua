-- Wireshark dissector of stateless TCP (docs/plain.md): decodes the cookie and the timestamps of a connection.
-- Packets have no mark, so a preference lists the services' ports (`rivulet_plain.ports`, default 80;
-- `tshark -o rivulet_plain.ports:80,8080`). Services with a back end have other timestamps: their ports must be in
-- `rivulet_plain.back_ends` too. The dissector has no key, so it does not verify cookies.

local plain = Proto("rivulet_plain", "Rivulet, stateless TCP")
plain.prefs.ports = Pref.range("Ports", "80", "Ports of services that are answered without state", 65535)

plain.prefs.back_ends = Pref.range("Ports with back ends", "", "Those of them whose answers a back end gives", 65535)

-- The same values as in host/plain: codec.rs, stamp.rs, whole.rs.
local SIZES = { [0] = 536, 1220, 1440, 1460 }
local SCALES = { [0] = 0, 2, 4, 6, 7, 8, 9, 11 }
local KINDS = { [0] = "small answers", "large answers, steady", "large answers, repair", "the kernel's own socket" }
local FIRST_START = 32
local UNIT = 2 ^ 26 -- microseconds

local f = {}
local function field(name, kind, title, ...)
  f[name] = ProtoField[kind]("rivulet_plain." .. name, title, ...)
end

field("cookie", "uint32", "ISN, a cookie (not verified)", base.HEX)
field("class", "uint8", "Class of the segment size", base.DEC)
field("mss", "uint16", "Client's MSS, at least", base.DEC)
field("first", "uint16", "Client's first sequence number, bits 8 to 1", base.HEX)
field("fin", "bool", "The client has FIN")
field("end", "bool", "The client is at the end of the answer")
field("value", "uint32", "Timestamp", base.HEX)
field("kind", "uint8", "Kind", base.DEC, KINDS)
field("minute", "uint8", "Opened in unit of 67 s (low 4 bits)", base.DEC)
field("age", "uint8", "Opened so many units ago, by the capture's clock", base.DEC)
field("sealed", "uint16", "Client's first sequence number, 15 bits under a pad", base.HEX)
field("start", "uint32", "The answer begins at octet", base.DEC)
field("next", "uint16", "Sequence number behind the request, 12 bits", base.HEX)
field("version", "uint8", "Version of the table, 2 bits", base.DEC)
field("length", "uint16", "Octets of the back end's answer", base.DEC)
field("check", "uint16", "Hash of the back end's answer, 10 bits", base.HEX)
field("scale", "uint8", "Client's window scale, rounded down", base.DEC)
field("slot", "uint8", "Slot", base.DEC)
field("window", "uint32", "Congestion window when it was sent, octets", base.DEC)
field("all", "uint8", "All that the client said is acknowledged", base.DEC)
field("object", "uint16", "Number of the large object, encrypted with a pad of the connection", base.HEX)
field("large_check", "uint8", "Hash of connection, table and the other bits, 3 bits", base.DEC)
field("clock", "uint32", "Clock of the kernel's socket, 22 bits", base.DEC)

local list = {}
for _, one in pairs(f) do list[#list + 1] = one end
plain.fields = list
local foreign = ProtoExpert.new("rivulet_plain.foreign", "No cookie of a service that is answered without state",
  expert.group.PROTOCOL, expert.severity.NOTE)
plain.experts = { foreign }

local tcp = {}
for name, path in pairs({
  source = "tcp.srcport", destination = "tcp.dstport", syn = "tcp.flags.syn", ack = "tcp.flags.ack", reset = "tcp.flags.reset",
  seq = "tcp.seq_raw", acknowledged = "tcp.ack_raw", said = "tcp.options.timestamp.tsval", echoed = "tcp.options.timestamp.tsecr",
}) do
  tcp[name] = Field.new(path)
end

-- Whether a preference such as "80,443,8000-8100" contains a port. It is a string in some releases, a range in others.
local function names(preference, port)
  for low, high in string.gmatch(tostring(preference), "(%d+)%-?(%d*)") do
    if port >= tonumber(low) and port <= (tonumber(high) or tonumber(low)) then return true end
  end
  return false
end

local function bits(value, shift, count)
  return bit.band(bit.rshift(value, shift), 2 ^ count - 1)
end

local function class(tree, range, number)
  tree:add(f.class, range, number)
  tree:add(f.mss, range, SIZES[number])
end

-- Decodes the server's initial sequence number; `first` is the client's.
local function isn(tree, range, value, stamped, first)
  local sub = tree:add(f.cookie, range)
  if stamped then
    class(sub, range, bits(value, 1, 2))
    if bits(value, 0, 1) ~= 0 then sub:add_proto_expert_info(foreign) end
  else
    sub:add(f.first, range, bit.band(value, 0x1fe))
    if bit.band(value, 0x201) ~= 0 or bit.band(value, 0x1fe) ~= bit.band(first, 0x1fe) then
      sub:add_proto_expert_info(foreign)
    end
  end
end

-- Position of an acknowledgement. All positions of a stamped connection are multiples of 8, so this needs no ISN.
local function place(tree, range, value, stamped)
  local low = (value - 1) % 1024
  if stamped then
    class(tree, range, bits(low, 1, 2))
    tree:add(f.fin, range, bits(low, 0, 1) ~= 0)
  elseif bits(low, 9, 1) ~= 0 then
    tree:add(f["end"], range, true)
    tree:add(f.fin, range, bits(low, 0, 1) ~= 0)
  else
    tree:add(f.first, range, bit.band(low, 0x1fe))
  end
end

-- Whether a timestamp is that of an answer; from a back end such a timestamp has another format.
local function is_answer(value)
  return bits(value, 22, 2) == 0 and bits(value, 24, 8) * 32 + bits(value, 17, 5) >= FIRST_START
end

-- Decodes a timestamp of the server, sent or echoed; returns a description.
local function stamp(tree, range, value, now, back_end)
  local sub = tree:add(f.value, range)
  local kind = bits(value, 22, 2)
  sub:add(f.kind, range, kind)
  if kind ~= 0 then
    sub:add(f.slot, range, bits(value, 24, 8))
    if kind == 3 then
      sub:add(f.clock, range, bits(value, 0, 22))
      return KINDS[kind]
    end
    local window = math.floor(2048 * 2 ^ (bits(value, 16, 6) / 7) + 0.5)
    sub:add(f.window, range, window)
    sub:add(f.all, range, bits(value, 15, 1))
    sub:add(f.object, range, bits(value, 6, 9))
    sub:add(f.large_check, range, bits(value, 3, 3))
    sub:add(f.scale, range, SCALES[bits(value, 0, 3)])
    return string.format("%s, window %d", KINDS[kind], window)
  end
  local start = bits(value, 24, 8) * 32 + bits(value, 17, 5)
  local words
  if start < FIRST_START then
    local minute = bits(value, 18, 4)
    sub:add(f.minute, range, minute)
    sub:add(f.age, range, (math.floor(now * 1e6 / UNIT) - minute) % 16):set_generated()
    sub:add(f.sealed, range, bits(value, 3, 15))
    words = "opening"
  elseif back_end then
    local length = (start - FIRST_START) * 4 + bits(value, 3, 2)
    sub:add(f.length, range, length)
    class(sub, range, bits(value, 15, 2))
    sub:add(f.check, range, bits(value, 5, 10))
    words = string.format("a back end's answer of %d", length)
  else
    start = (start - FIRST_START) * 64
    sub:add(f.start, range, start)
    sub:add(f.next, range, bits(value, 5, 12))
    sub:add(f.version, range, bits(value, 3, 2))
    words = string.format("answer from %d", start)
  end
  sub:add(f.scale, range, SCALES[bits(value, 0, 3)])
  return words
end

function plain.dissector(_, pinfo, root)
  local source, destination = tcp.source(), tcp.destination()
  if not source or not destination or tcp.reset().value then return end
  local ports = plain.prefs.ports
  local from, to = names(ports, source.value), names(ports, destination.value)
  if from == to then return end
  local said, echoed = tcp.said(), tcp.echoed()
  local stamped, now = said ~= nil, tonumber(tostring(pinfo.abs_ts))
  local opening = tcp.syn().value
  -- A client's SYN has no field of stateless TCP.
  if opening and (to or not tcp.ack().value) then return end
  local tree = root:add(plain, (from and source or destination).range, "Rivulet, stateless TCP")
  local words
  local back_end = names(plain.prefs.back_ends, (from and source or destination).value)
  if from then
    if opening then isn(tree, tcp.seq().range, tcp.seq().value, stamped, tcp.acknowledged().value) end
    if stamped then words = stamp(tree, said.range, said.value, now, back_end) end
  elseif tcp.ack().value then
    local acknowledged = tcp.acknowledged()
    -- A back end's answer ends at any position, after which the low bits are meaningless.
    if not (back_end and stamped and echoed and is_answer(echoed.value)) then
      place(tree, acknowledged.range, acknowledged.value, stamped)
    end
    if stamped and echoed then words = stamp(tree, echoed.range, echoed.value, now, back_end) end
  end
  if words then tree:append_text(", " .. words) end
end

register_postdissector(plain)
