// Package watchdog is the mutual watchdog of a node's two halves (seed 001 §III-E, §IV-A): their shared
// registers, bit for bit as in the paper's Tables III to VII, and the two
// small machines that move them.
//
// The owner of a word writes and validates it every TWrite; the other half reads and invalidates
// it every TRead. TWrite < TRead, so the reader finds a valid word unless the owner can no longer
// write. Writer decides when to write, Reader when to read and how to judge the word.
//
// The package is pure: it maps no memory, reads no clock and reports nothing. The words are in
// the file of pkg/watchdog/regfile; pkg/awareness derives the state of the node from a verdict.
//
// # Addresses that the paper does not define
//
// Table VI gives power and voltage no address. This project puts them beside those of the temperature:
//
//	0x00000f04  power thresholds      0x00000f44  power value
//	0x00000f08  voltage thresholds    0x00000f48  voltage value
//
// The table does not contain the channel mask either, which is seed 003's (§5.2.3.1: the router's configuration
// register). It is beside the router's other configuration register, the maximum of hops: 0x0000000c.
//
// The paper does not define the single bits of the exception registers; exceptions.go
// defines some and leaves the others unassigned.
package watchdog

import (
	"fmt"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Addr is the address of a register in the DNP's map (Table VI), in bytes, a multiple of 4 below 4 KiB.
type Addr uint32

// The addresses. See AddrChannel for those that exist once per direction.
const (
	AddrMaxHops               Addr = 0x0008
	AddrChannelMask           Addr = 0x000c // chosen here
	AddrEngine                Addr = 0x00c0
	AddrRouter0               Addr = 0x0140
	AddrRouter1               Addr = 0x0144
	AddrRDMA                  Addr = 0x0240
	AddrDNPWatchdog           Addr = 0x0ec0
	AddrHostWatchdog          Addr = 0x0ec4
	AddrRemoteFaultDescriptor Addr = 0x0ec8
	AddrTemperatureThresholds Addr = 0x0f00
	AddrPowerThresholds       Addr = 0x0f04 // chosen here
	AddrVoltageThresholds     Addr = 0x0f08 // chosen here
	AddrTemperature           Addr = 0x0f40
	AddrPower                 Addr = 0x0f44 // chosen here
	AddrVoltage               Addr = 0x0f48 // chosen here
)

// addrChannelXPlus is the first of the channel exception registers; the others follow in the
// order of grid.Directions (X+ X- Y+ Y- Z+ Z-), 0x100 apart.
const addrChannelXPlus Addr = 0x0440

// AddrChannel returns the address of the exception register of the link in direction d.
func AddrChannel(d grid.Direction) Addr {
	return addrChannelXPlus + Addr(d.Index())*0x100
}

// String returns the address as the paper prints it: 0x00000ec0.
func (a Addr) String() string { return fmt.Sprintf("0x%08x", uint32(a)) }

// Health is a two-bit health field. Its values are those on the wire, so that, unlike in the other enums of this
// project, zero has a meaning: normal. 11 is undefined, and every decoder refuses it.
type Health uint8

// The healths. For temperature, power and voltage the paper calls them normal, warning and alarm.
const (
	HealthNormal Health = 0b00
	HealthSick   Health = 0b01
	HealthBroken Health = 0b10

	healthUndefined Health = 0b11
)

// String returns normal, sick or broken.
func (h Health) String() string {
	switch h {
	case HealthNormal:
		return "normal"
	case HealthSick:
		return "sick"
	case HealthBroken:
		return "broken"
	default:
		return fmt.Sprintf("Health(%d)", uint8(h))
	}
}

// Valid reports whether h is one of the three defined values.
func (h Health) Valid() bool { return h <= HealthBroken }

// field returns the two bits of h. An undefined value becomes 11, which no decoder accepts: a bug in the writer must
// not read as another health.
func (h Health) field() uint32 {
	if !h.Valid() {
		return uint32(healthUndefined)
	}
	return uint32(h)
}
