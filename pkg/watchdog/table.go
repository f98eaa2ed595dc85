package watchdog

import (
	"slices"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// RegisterInfo is one row of the register map.
type RegisterInfo struct {
	Addr     Addr
	Mask     uint32 // the bits that exist
	Name     string
	Owner    fault.Half // the writing half; the other half reads
	HasValid bool       // bit 0 is the Valid bit of §III-E
	Source   string     // source of the address
	Meaning  string

	layout []fieldLayout // from the lowest bit; together exactly the mask
}

// fieldKind is the interpretation of a field's value.
type fieldKind uint8

const (
	kindValid      fieldKind = iota + 1 // 0 not valid, 1 valid
	kindFails                           // 0 healthy, 1 fails
	kindBroken                          // 0 normal, 1 broken
	kindRaised                          // 0 clear, 1 raised
	kindUsable                          // 0 masked, 1 usable
	kindHealth                          // normal, sick, broken
	kindRange                           // normal, warning, alarm
	kindNumber                          // a plain number
	kindCelsius                         // a temperature code
	kindWatts                           // a power code
	kindVolts                           // a voltage code
	kindUnassigned                      // inside the mask, without a meaning yet
)

type fieldLayout struct {
	name     string
	low, top int // bits, both inclusive
	kind     fieldKind
}

func (f fieldLayout) value(v uint32) uint32 { return v >> f.low & f.max() }
func (f fieldLayout) max() uint32           { return uint32(1<<(f.top-f.low+1) - 1) }

// registers is the central table, ordered by address. It is immutable after start.
var registers = makeRegisters()

// Registers returns all registers, ordered by address.
func Registers() []RegisterInfo { return slices.Clone(registers) }

// Lookup returns the register at an address, and false if there is none.
func Lookup(a Addr) (RegisterInfo, bool) {
	i, ok := slices.BinarySearchFunc(registers, a, func(r RegisterInfo, a Addr) int { return int(r.Addr) - int(a) })
	if !ok {
		return RegisterInfo{}, false
	}
	return registers[i], true
}

// tableOrder is the order of the directions in Tables III and V, lowest bit first.
var tableOrder = [...]grid.Direction{grid.ZMinus, grid.ZPlus, grid.YMinus, grid.YPlus, grid.XMinus, grid.XPlus}

func makeRegisters() []RegisterInfo {
	const (
		dnp, host = fault.HalfDNP, fault.HalfHost
		table6    = "seed 001 Table VI"
		chosen    = "chosen here; Table VI has no address"
	)
	regs := []RegisterInfo{
		{AddrMaxHops, 0xff, "Max hops", dnp, false, table6, "maximum number of hops of a message",
			[]fieldLayout{{"Max hops", 0, 7, kindNumber}}},
		{AddrChannelMask, 0x3f, "Channel mask", dnp, false, "seed 003 §5.2.3.1; address chosen here", "channels that may carry messages",
			channels()},
		{AddrEngine, 0xfff, "Engine exceptions", dnp, false, table6, "engine status and exceptions",
			flags(12, "Register file unusable", "Host word corrupt", "Late", "Sensor silent", "Internal error survived", "Self-test failed",
				"Restarted, not proven", "Registers unusable: fatal")},
		{AddrRouter0, 0xffffffff, "Router exceptions 0", dnp, false, table6, "router status and exceptions",
			flags(32, "Hops exceeded", "No route", "Message not encoded", "Forwarding memory full", "Relay self-test failed",
				"Protocol: message never sent acknowledged", "Protocol: frame never sent acknowledged", "Protocol: stream without restart",
				"Protocol: impossible hops",
				"Protocol: destination outside", "Protocol: flood came back", "Protocol: invalid broadcast",
				"Protocol: malformed message")},
		{AddrRouter1, 0x3fff, "Router exceptions 1", dnp, false, table6, "router queues",
			flags(14, "Queue full Z-", "Queue full Z+", "Queue full Y-", "Queue full Y+", "Queue full X-", "Queue full X+")},
		{AddrRDMA, 0xff, "RDMA exceptions", dnp, false, table6, "RDMA status: here the mailbox between DNP and host",
			flags(8, "Mailbox full", "Mailbox message unreadable", "Mailbox self-test failed")},
		{AddrDNPWatchdog, MaskDNPWatchdog, "DNP local/global watchdog", dnp, true, "seed 001 Tables III and VI",
			"health of the local DNP, fate of the neighbouring hosts", dnpLayout()},
		{AddrHostWatchdog, MaskHostWatchdog, "Host watchdog", host, true, "seed 001 Tables IV and VI",
			"health of the local host", hostLayout()},
		{AddrRemoteFaultDescriptor, MaskRemoteFaultDescriptor, "Host remote fault descriptor", dnp, false,
			"seed 001 Tables V and VI", "faults in the neighbouring hosts", descriptorLayout()},
		{AddrTemperatureThresholds, 0xffffffff, "Temperature thresholds", dnp, false, table6, "bounds of normal, warning and alarm",
			bounds(kindCelsius)},
		{AddrPowerThresholds, 0xffffffff, "Power thresholds", dnp, false, chosen, "bounds of normal, warning and alarm",
			bounds(kindWatts)},
		{AddrVoltageThresholds, 0xffffffff, "Voltage thresholds", dnp, false, chosen, "bounds of normal, warning and alarm",
			bounds(kindVolts)},
		{AddrTemperature, 0xff, "Temperature", dnp, false, "seed 001 Tables VI and VII", "temperature, excess 128 °C",
			[]fieldLayout{{"Temperature", 0, 7, kindCelsius}}},
		{AddrPower, 0xff, "Power", dnp, false, chosen, "power consumption, units of 2 W",
			[]fieldLayout{{"Power", 0, 7, kindWatts}}},
		{AddrVoltage, 0xff, "Voltage", dnp, false, chosen, "voltage, units of 1/16 V",
			[]fieldLayout{{"Voltage", 0, 7, kindVolts}}},
	}
	for _, d := range grid.Directions() {
		regs = append(regs, RegisterInfo{AddrChannel(d), 0xff, "Channel " + d.String() + " exceptions", dnp, false, table6,
			"link status and exceptions",
			flags(8, "CRC errors", "MAC failures", "Malformed frames", "Sequence gaps", "Replays", "Handshake lost", "Silence", "Send errors")})
	}
	slices.SortFunc(regs, func(a, b RegisterInfo) int { return int(a.Addr) - int(b.Addr) })
	return regs
}

func dnpLayout() []fieldLayout {
	f := []fieldLayout{{"Valid", 0, 0, kindValid}}
	for i, d := range tableOrder {
		f = append(f, fieldLayout{"Neighbour host " + d.String(), 1 + i, 1 + i, kindFails})
	}
	f = append(f,
		fieldLayout{"DNP core", 7, 8, kindHealth},
		fieldLayout{"Power", 9, 10, kindRange},
		fieldLayout{"Voltage", 11, 12, kindRange},
		fieldLayout{"Temperature", 13, 14, kindRange})
	for i, d := range tableOrder {
		f = append(f, fieldLayout{"Link " + d.String(), 15 + 2*i, 16 + 2*i, kindHealth})
	}
	return f
}

func hostLayout() []fieldLayout {
	return []fieldLayout{
		{"Valid", 0, 0, kindValid},
		{"Service network", 1, 2, kindHealth},
		{"Memory", 3, 4, kindHealth},
		{"Peripheral 0", 5, 6, kindHealth},
		{"Peripheral 1", 7, 8, kindHealth},
	}
}

func descriptorLayout() []fieldLayout {
	var f []fieldLayout
	for i, d := range tableOrder {
		for j, name := range [...]string{"service network", "memory", "peripheral 0", "peripheral 1"} {
			f = append(f, fieldLayout{d.String() + " " + name, 4*i + j, 4*i + j, kindBroken})
		}
	}
	return f
}

// flags lays out one-bit exceptions from bit 0, and the rest of the width as unassigned.
func flags(width int, names ...string) []fieldLayout {
	var f []fieldLayout
	for i, n := range names {
		f = append(f, fieldLayout{n, i, i, kindRaised})
	}
	if len(names) < width {
		f = append(f, fieldLayout{"Unassigned", len(names), width - 1, kindUnassigned})
	}
	return f
}

// channels lays out the mask like chanmask.Mask: in the order of grid.Directions.
func channels() []fieldLayout {
	var f []fieldLayout
	for i, d := range grid.Directions() {
		f = append(f, fieldLayout{"Channel " + d.String(), i, i, kindUsable})
	}
	return f
}

func bounds(kind fieldKind) []fieldLayout {
	return []fieldLayout{
		{"Alarm below", 0, 7, kind},
		{"Warning below", 8, 15, kind},
		{"Warning above", 16, 23, kind},
		{"Alarm above", 24, 31, kind},
	}
}
