package watchdog

import "github.com/lofamo/lofamo/pkg/torus/grid"

// ValidBit is the Valid bit of the two watchdog words: 1 when the owner has written since the
// other half last read.
const ValidBit uint32 = 1

// BitOfMap is a mark in the last host word of a neighbour, where the Valid bit is otherwise unused. If the neighbour-host bit of that
// direction is raised with an empty nibble and BitOfMap is set, only the fault map says that the neighbour's host is dead. The DNP half
// clears BitOfMap while the neighbour's own frames say so.
const BitOfMap = ValidBit

// The masks of the three LO|FA|MO words.
const (
	MaskDNPWatchdog           uint32 = 0x07ffffff
	MaskHostWatchdog          uint32 = 0x000001ff
	MaskRemoteFaultDescriptor uint32 = 0x00ffffff
)

// Offsets of the fields in the words. In all three words the directions are in the order Z- Z+ Y- Y+ X- X+ from the
// lowest bit, the reverse of grid.Directions. So the shifts below decrease with the index of the direction.
const (
	dnpCoreShift        = 7
	dnpPowerShift       = 9
	dnpVoltageShift     = 11
	dnpTemperatureShift = 13

	hostServiceNetworkShift = 1
	hostMemoryShift         = 3
	hostPeripheral0Shift    = 5
	hostPeripheral1Shift    = 7
)

func neighbourHostShift(index int) int { return 6 - index }
func linkShift(index int) int          { return 25 - 2*index }
func nibbleShift(index int) int        { return 20 - 4*index }

// DNPWord is the DNP local/global watchdog register (Table III): the local DNP's health and the state of the
// neighbouring hosts. Owner: DNP half. Reader: host half. The arrays are indexed by grid.Direction.Index.
type DNPWord struct {
	Valid               bool
	NeighbourHostFailed [grid.NumDirections]bool
	Core                Health // the table defines normal and sick only; broken is used as everywhere else
	Power               Health
	Voltage             Health
	Temperature         Health
	Links               [grid.NumDirections]Health
}

// Encode returns the word. An undefined health becomes 11.
func (w DNPWord) Encode() uint32 {
	v := bit(w.Valid) |
		w.Core.field()<<dnpCoreShift |
		w.Power.field()<<dnpPowerShift |
		w.Voltage.field()<<dnpVoltageShift |
		w.Temperature.field()<<dnpTemperatureShift
	for i := range grid.NumDirections {
		v |= bit(w.NeighbourHostFailed[i]) << neighbourHostShift(i)
		v |= w.Links[i].field() << linkShift(i)
	}
	return v
}

// DecodeDNPWord is the inverse of Encode. It refuses bits outside the mask and health fields of 11.
func DecodeDNPWord(v uint32) (DNPWord, error) {
	if err := Check(AddrDNPWatchdog, v); err != nil {
		return DNPWord{}, err
	}
	w := DNPWord{
		Valid:       v&ValidBit != 0,
		Core:        health(v, dnpCoreShift),
		Power:       health(v, dnpPowerShift),
		Voltage:     health(v, dnpVoltageShift),
		Temperature: health(v, dnpTemperatureShift),
	}
	for i := range grid.NumDirections {
		w.NeighbourHostFailed[i] = v>>neighbourHostShift(i)&1 != 0
		w.Links[i] = health(v, linkShift(i))
	}
	return w, nil
}

// HostWord is the host watchdog register (Table IV): the host's knowledge of itself. Owner: host half. Reader: DNP
// half.
type HostWord struct {
	Valid          bool
	ServiceNetwork Health
	Memory         Health
	Peripheral0    Health
	Peripheral1    Health
}

// Encode returns the word. An undefined health becomes 11.
func (w HostWord) Encode() uint32 {
	return bit(w.Valid) |
		w.ServiceNetwork.field()<<hostServiceNetworkShift |
		w.Memory.field()<<hostMemoryShift |
		w.Peripheral0.field()<<hostPeripheral0Shift |
		w.Peripheral1.field()<<hostPeripheral1Shift
}

// DecodeHostWord is the inverse of Encode. It refuses bits outside the mask and health fields of 11.
func DecodeHostWord(v uint32) (HostWord, error) {
	if err := Check(AddrHostWatchdog, v); err != nil {
		return HostWord{}, err
	}
	return HostWord{
		Valid:          v&ValidBit != 0,
		ServiceNetwork: health(v, hostServiceNetworkShift),
		Memory:         health(v, hostMemoryShift),
		Peripheral0:    health(v, hostPeripheral0Shift),
		Peripheral1:    health(v, hostPeripheral1Shift),
	}, nil
}

// Faults returns the word's faults in the remote fault descriptor's form, with one bit per field: broken, not sick.
func (w HostWord) Faults() NeighbourFaults {
	return NeighbourFaults{
		ServiceNetwork: w.ServiceNetwork == HealthBroken,
		Memory:         w.Memory == HealthBroken,
		Peripheral0:    w.Peripheral0 == HealthBroken,
		Peripheral1:    w.Peripheral1 == HealthBroken,
	}
}

// NeighbourFaults is the part of the remote fault descriptor about one neighbour's host. All false beside a raised
// neighbour-host bit in the DNP word is a host breakdown.
type NeighbourFaults struct {
	ServiceNetwork, Memory, Peripheral0, Peripheral1 bool
}

// Any reports whether any of the four is broken.
func (n NeighbourFaults) Any() bool { return n != NeighbourFaults{} }

func (n NeighbourFaults) nibble() uint32 {
	return bit(n.ServiceNetwork) | bit(n.Memory)<<1 | bit(n.Peripheral0)<<2 | bit(n.Peripheral1)<<3
}

func decodeNibble(v uint32) NeighbourFaults {
	return NeighbourFaults{v&1 != 0, v&2 != 0, v&4 != 0, v&8 != 0}
}

// DescriptorWord is the host remote fault descriptor register (Table V), indexed by grid.Direction.Index. It has no
// Valid bit. Owner: DNP half, from the neighbours' messages.
type DescriptorWord struct {
	Neighbours [grid.NumDirections]NeighbourFaults
}

// Encode returns the word.
func (w DescriptorWord) Encode() uint32 {
	var v uint32
	for i, n := range w.Neighbours {
		v |= n.nibble() << nibbleShift(i)
	}
	return v
}

// DecodeDescriptorWord is the inverse of Encode. It refuses bits outside the mask.
func DecodeDescriptorWord(v uint32) (DescriptorWord, error) {
	if err := Check(AddrRemoteFaultDescriptor, v); err != nil {
		return DescriptorWord{}, err
	}
	var w DescriptorWord
	for i := range w.Neighbours {
		w.Neighbours[i] = decodeNibble(v >> nibbleShift(i) & 0xf)
	}
	return w, nil
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func health(v uint32, shift int) Health { return Health(v >> shift & 3) }
