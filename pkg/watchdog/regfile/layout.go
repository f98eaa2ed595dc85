package regfile

import (
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// Offsets on the extension page: see the package comment.
const (
	offMagic      = 0x000
	offDoorbells  = 0x008
	offEpochs     = 0x010
	offWords      = 0x080
	offGuards     = 0x100
	offWordGuards = 0x500
	offCounters   = 0x800

	epochStride = 0x20
	guardStride = 16
)

// Indices of the extension words.
const (
	extLinkDetail    = 0
	extNeighbourHost = extLinkDetail + grid.NumDirections
	extSensor        = extNeighbourHost + grid.NumDirections
	extTest          = extSensor + 3 // one for each half, host first
	extPeer          = extTest + 2
	numExtWords      = extPeer + grid.NumDirections
)

// forWindow reports whether an extension word passes through a window. The test words do not.
func forWindow(i int) bool { return i >= 0 && i < numExtWords && (i < extTest || i >= extPeer) }

// guardedRegisters maps guards to registers. Append only: two versions of the agent may share a file during an upgrade.
var guardedRegisters = [...]watchdog.Addr{
	watchdog.AddrDNPWatchdog, watchdog.AddrHostWatchdog, watchdog.AddrRemoteFaultDescriptor,
	watchdog.AddrTemperature, watchdog.AddrTemperatureThresholds,
	watchdog.AddrPower, watchdog.AddrPowerThresholds,
	watchdog.AddrVoltage, watchdog.AddrVoltageThresholds,
	watchdog.AddrMaxHops, watchdog.AddrRouter0, watchdog.AddrRouter1,
	watchdog.AddrChannel(grid.XPlus), watchdog.AddrChannel(grid.XMinus),
	watchdog.AddrChannel(grid.YPlus), watchdog.AddrChannel(grid.YMinus),
	watchdog.AddrChannel(grid.ZPlus), watchdog.AddrChannel(grid.ZMinus),
	watchdog.AddrRDMA, watchdog.AddrEngine, watchdog.AddrChannelMask,
}

// cell is a guarded word: its offsets, its guards' offsets, and its writer.
type cell struct {
	word, guards int    // offsets in the file
	valid        uint32 // the Valid bit, 0 for a word without one
	owner        fault.Half
	loading      string // what Load does, for its errors; "": no register
}

// registerCells are the cells of guardedRegisters, made once: a host half loads several registers in each tick.
var registerCells = func() (out [len(guardedRegisters)]cell) {
	for i, a := range guardedRegisters {
		reg, ok := watchdog.Lookup(a)
		if !ok {
			continue
		}
		out[i] = cell{word: int(a), guards: pageSize + offGuards + guardStride*i, owner: reg.Owner, loading: "load register " + a.String()}
		if reg.HasValid {
			out[i].valid = watchdog.ValidBit
		}
	}
	return out
}()

// registerCell returns the cell of a register, and false for an address without a register.
func registerCell(a watchdog.Addr) (cell, bool) {
	i := slices.Index(guardedRegisters[:], a)
	if i < 0 || registerCells[i].loading == "" {
		return cell{}, false
	}
	return registerCells[i], true
}

// The cells used on every tick, looked up once.
var (
	dnpCell, _        = registerCell(watchdog.AddrDNPWatchdog)
	hostCell, _       = registerCell(watchdog.AddrHostWatchdog)
	descriptorCell, _ = registerCell(watchdog.AddrRemoteFaultDescriptor)
)

// extCell returns the cell of an extension word. The DNP half owns all of them except the first test word.
func extCell(i int) cell {
	c := cell{
		word:   pageSize + offWords + 4*i,
		guards: pageSize + offWordGuards + guardStride*i,
		owner:  fault.HalfDNP,
	}
	if i == extTest {
		c.owner = fault.HalfHost
	}
	return c
}

// u32 and u64 are words of the mapping, little-endian on every machine.
type (
	u32 struct{ p *uint32 }
	u64 struct{ p *uint64 }
)

func (f *File) u32(off int) u32 { return u32{(*uint32)(unsafe.Pointer(&f.mem[off]))} }
func (f *File) u64(off int) u64 { return u64{(*uint64)(unsafe.Pointer(&f.mem[off]))} }

func (w u32) load() uint32   { return le32(atomic.LoadUint32(w.p)) }
func (w u32) store(v uint32) { atomic.StoreUint32(w.p, le32(v)) }
func (w u32) compareAndSwap(old, v uint32) bool {
	return atomic.CompareAndSwapUint32(w.p, le32(old), le32(v))
}

func (w u64) load() uint64   { return le64(atomic.LoadUint64(w.p)) }
func (w u64) store(v uint64) { atomic.StoreUint64(w.p, le64(v)) }
func (w u64) compareAndSwap(old, v uint64) bool {
	return atomic.CompareAndSwapUint64(w.p, le64(old), le64(v))
}

func le32(v uint32) uint32 {
	if cpu.IsBigEndian {
		return bits.ReverseBytes32(v)
	}
	return v
}

func le64(v uint64) uint64 {
	if cpu.IsBigEndian {
		return bits.ReverseBytes64(v)
	}
	return v
}
