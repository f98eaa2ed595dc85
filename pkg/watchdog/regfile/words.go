package regfile

import (
	"fmt"
	"runtime"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// StoreDNP writes the DNP watchdog word and validates it, regardless of w.Valid. DNP half only.
func (f *File) StoreDNP(w watchdog.DNPWord) error {
	w.Valid = true
	return f.storeChecked("store DNP word", watchdog.AddrDNPWatchdog, dnpCell, w.Encode())
}

// StoreHost writes the host watchdog word and validates it, regardless of w.Valid. Host half only.
func (f *File) StoreHost(w watchdog.HostWord) error {
	w.Valid = true
	return f.storeChecked("store host word", watchdog.AddrHostWatchdog, hostCell, w.Encode())
}

// StoreDescriptor writes the remote fault descriptor. DNP half only.
func (f *File) StoreDescriptor(w watchdog.DescriptorWord) error {
	return f.storeChecked("store remote fault descriptor", watchdog.AddrRemoteFaultDescriptor, descriptorCell, w.Encode())
}

// Store writes any register as its owner. It refuses values that the register cannot hold.
func (f *File) Store(a watchdog.Addr, v uint32) error {
	c, err := f.registerCell("store register", a)
	if err != nil {
		return err
	}
	return f.storeChecked("store register", a, c, v)
}

// TakeDNP reads the DNP word and invalidates it. Host half only. The Sample is suitable for watchdog.Reader with every
// error. The error is the reason why a word was not valid: it wraps ErrCorrupt, or concerns the file.
func (f *File) TakeDNP() (watchdog.DNPWord, watchdog.Sample, error) {
	v, s, err := f.take("take DNP word", dnpCell)
	if err != nil || s.Corrupt {
		return watchdog.DNPWord{}, s, err
	}
	w, err := watchdog.DecodeDNPWord(v)
	if err != nil {
		return watchdog.DNPWord{}, watchdog.Sample{Corrupt: true}, f.undefined("take DNP word", err)
	}
	return w, s, nil
}

// TakeHost reads the host word and invalidates it. DNP half only. See TakeDNP.
func (f *File) TakeHost() (watchdog.HostWord, watchdog.Sample, error) {
	v, s, err := f.take("take host word", hostCell)
	if err != nil || s.Corrupt {
		return watchdog.HostWord{}, s, err
	}
	w, err := watchdog.DecodeHostWord(v)
	if err != nil {
		return watchdog.HostWord{}, watchdog.Sample{Corrupt: true}, f.undefined("take host word", err)
	}
	return w, s, nil
}

// LoadDNP returns the DNP word without invalidating it, for the paper's other readers and for a host half that a
// doorbell woke. raw is the stored value, even with an error that wraps ErrCorrupt.
func (f *File) LoadDNP() (w watchdog.DNPWord, raw uint32, err error) {
	if raw, err = f.load("load DNP word", dnpCell); err != nil {
		return w, raw, err
	}
	if w, err = watchdog.DecodeDNPWord(raw); err != nil {
		return w, raw, f.undefined("load DNP word", err)
	}
	return w, raw, nil
}

// LoadHost returns the host word without invalidating it. See LoadDNP.
func (f *File) LoadHost() (w watchdog.HostWord, raw uint32, err error) {
	if raw, err = f.load("load host word", hostCell); err != nil {
		return w, raw, err
	}
	if w, err = watchdog.DecodeHostWord(raw); err != nil {
		return w, raw, f.undefined("load host word", err)
	}
	return w, raw, nil
}

// LoadDescriptor returns the remote fault descriptor. See LoadDNP.
func (f *File) LoadDescriptor() (w watchdog.DescriptorWord, raw uint32, err error) {
	if raw, err = f.load("load remote fault descriptor", descriptorCell); err != nil {
		return w, raw, err
	}
	if w, err = watchdog.DecodeDescriptorWord(raw); err != nil {
		return w, raw, f.undefined("load remote fault descriptor", err)
	}
	return w, raw, nil
}

// Load returns any register, 0 if it was never written. With an error that wraps ErrCorrupt, it returns the stored
// value.
func (f *File) Load(a watchdog.Addr) (uint32, error) {
	c, err := f.registerCell("load register", a)
	if err != nil {
		return 0, err
	}
	return f.load(c.loading, c)
}

// Poke writes a register of a file from outside, including the guards, as its owner would: for tests and fault
// injection. It does not check the value, so that undefined words can be written too, and keeps the given Valid bit. It
// takes no lock; if the owner stores at the same moment, the word may read as corrupt until the owner's next store.
func Poke(path string, a watchdog.Addr, value uint32) (err error) {
	c, ok := registerCell(a)
	if !ok {
		return fmt.Errorf("poke register file %s: %w", path, watchdog.Check(a, value))
	}
	f, err := open(path, c.owner, 0)
	if err != nil {
		return fmt.Errorf("poke register file %s: %w", path, err)
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	return f.store("poke register "+a.String(), c, value)
}

func (f *File) registerCell(op string, a watchdog.Addr) (cell, error) {
	c, ok := registerCell(a)
	if !ok {
		return cell{}, fmt.Errorf("%s: register file %s: %w", op, f.path, watchdog.Check(a, 0))
	}
	return c, nil
}

func (f *File) undefined(op string, err error) error {
	f.mu.Lock()
	f.corrupt++
	f.mu.Unlock()
	return fmt.Errorf("%s: register file %s: %w: %w", op, f.path, ErrCorrupt, err)
}

func (f *File) storeChecked(op string, a watchdog.Addr, c cell, v uint32) error {
	if err := watchdog.Check(a, v); err != nil {
		return fmt.Errorf("%s: register file %s: %w", op, f.path, err)
	}
	return f.store(op, c, v)
}

// mustBe refuses operations of the other half.
func (f *File) mustBe(op string, half fault.Half) error {
	if f.half != half {
		by := "read-only"
		if f.half != 0 {
			by = "by the " + f.half.String() + " half"
		}
		return fmt.Errorf("%s: register file %s is open %s: want the %s half", op, f.path, by, half)
	}
	return nil
}

func (f *File) store(op string, c cell, v uint32) error {
	if err := f.mustBe(op, c.owner); err != nil {
		return err
	}
	return f.access(op, func() error {
		s := f.state(c)
		n := c.number()
		if f.wrote[n] && !s.good(c) && !f.lost[n] {
			f.replaced++
		}
		f.wrote[n], f.lost[n] = true, false
		plan, steps := planStore(c, s, v)
		for _, w := range plan[:steps] {
			f.write(c, w)
		}
		return nil
	})
}

// state loads the three parts of a cell. A store may run at the same time: readers retry.
func (f *File) state(c cell) cellState {
	return cellState{
		word: f.u32(c.word).load(),
		a:    guard(f.u64(c.guards).load()),
		b:    guard(f.u64(c.guards + 8).load()),
	}
}

func (f *File) write(c cell, w write) {
	switch w.part {
	case partWord:
		f.u32(c.word).store(uint32(w.v))
	case partA:
		f.u64(c.guards).store(w.v)
	case partB:
		f.u64(c.guards + 8).store(w.v)
	}
}

// readTries limits the reads of a cell whose parts do not match, which may be due to a simultaneous store. A store
// takes some ten nanoseconds.
const readTries = 64

// read returns the consistent state of a cell; false after readTries.
func (f *File) read(c cell) (cellState, bool) {
	var s cellState
	for try := range readTries {
		if s = f.state(c); s.blank() || s.good(c) {
			return s, true
		}
		if try > readTries/2 {
			runtime.Gosched() // the owner may be a goroutine of this process, in tests
		}
	}
	f.corrupt++
	return s, false
}

func (f *File) load(op string, c cell) (v uint32, err error) {
	err = f.access(op, func() error {
		s, ok := f.read(c)
		v = s.word
		if !ok {
			return corruptError(c, s)
		}
		return nil
	})
	return v, err
}

// take loads a word and clears its Valid bit in one atomic step. It leaves a corrupt word unchanged.
func (f *File) take(op string, c cell) (v uint32, sample watchdog.Sample, err error) {
	if err := f.mustBe(op, c.owner.Other()); err != nil {
		return 0, sample, err
	}
	err = f.access(op, func() error {
		for range readTries {
			s, ok := f.read(c)
			if !ok {
				sample.Corrupt = true
				return corruptError(c, s)
			}
			v = s.word
			if v&c.valid == 0 {
				return nil
			}
			if f.u32(c.word).compareAndSwap(v, v&^c.valid) {
				sample.Valid = true
				return nil
			}
		}
		// The owner wrote between our load and our swap every time: it lives, and its next word will be read as well.
		sample.Valid = true
		return nil
	})
	return v, sample, err
}

func corruptError(c cell, s cellState) error {
	return fmt.Errorf("%w: word 0x%08x at 0x%04x agrees with neither of its guards 0x%016x and 0x%016x",
		ErrCorrupt, s.word, c.word, uint64(s.a), uint64(s.b))
}

// SetLinkDetail writes the detail word of a link (torus.Detail). DNP half only.
func (f *File) SetLinkDetail(d grid.Direction, v uint32) error {
	return f.store("set link detail "+d.String(), extCell(extLinkDetail+d.Index()), v)
}

// LinkDetail returns the detail word of a link: 0, which is no detail, also if it is unreadable.
func (f *File) LinkDetail(d grid.Direction) uint32 {
	v, err := f.LoadLinkDetail(d)
	if err != nil {
		return 0
	}
	return v
}

// LoadLinkDetail is LinkDetail with an error for an unreadable word.
func (f *File) LoadLinkDetail(d grid.Direction) (uint32, error) {
	return f.load("link detail", extCell(extLinkDetail+d.Index()))
}

// SetNeighbourHost writes the last known host word of a neighbour, the remaining hint at the cause after that host has
// died. DNP half only.
func (f *File) SetNeighbourHost(d grid.Direction, v uint32) error {
	return f.store("set neighbour host word "+d.String(), extCell(extNeighbourHost+d.Index()), v)
}

// NeighbourHost returns the last known host word of a neighbour: 0, which is unknown, also if it is unreadable.
func (f *File) NeighbourHost(d grid.Direction) uint32 {
	v, err := f.LoadNeighbourHost(d)
	if err != nil {
		return 0
	}
	return v
}

// LoadNeighbourHost is NeighbourHost with an error for an unreadable word.
func (f *File) LoadNeighbourHost(d grid.Direction) (uint32, error) {
	return f.load("neighbour host word", extCell(extNeighbourHost+d.Index()))
}

// SetPeer writes the mark of a link's peer: the node that the other words about that link describe. DNP half only.
func (f *File) SetPeer(d grid.Direction, mark uint32) error {
	return f.store("set peer "+d.String(), extCell(extPeer+d.Index()), mark)
}

// LoadPeer returns the mark that SetPeer wrote; 0: none, as with a DNP half of an earlier version.
func (f *File) LoadPeer(d grid.Direction) (uint32, error) {
	return f.load("peer", extCell(extPeer+d.Index()))
}

// Test stores a value in the caller's own test word, like any other word, and returns the value read back: the
// self-test of words in the page. No other code reads it.
func (f *File) Test(v uint32) (uint32, error) {
	if f.half == 0 {
		return 0, fmt.Errorf("test: register file %s is open read-only", f.path)
	}
	c := extCell(extTest + int(f.half) - int(fault.HalfHost))
	if err := f.store("test", c, v); err != nil {
		return 0, err
	}
	return f.load("test", c)
}

// SetSensor writes the last value of a sensor (temperature, power or voltage) in thousandths of °C, W or V, because the
// paper's registers are too coarse; or watchdog.AbsentSensor. DNP half only.
func (f *File) SetSensor(c fault.Component, thousandths int32) error {
	i, err := sensorIndex(c)
	if err != nil {
		return fmt.Errorf("set sensor: register file %s: %w", f.path, err)
	}
	return f.store("set sensor", extCell(i), uint32(thousandths))
}

// Sensor returns the last value of a sensor in thousandths.
func (f *File) Sensor(c fault.Component) (int32, error) {
	i, err := sensorIndex(c)
	if err != nil {
		return 0, fmt.Errorf("sensor: register file %s: %w", f.path, err)
	}
	v, err := f.load("sensor", extCell(i))
	return int32(v), err
}

func sensorIndex(c fault.Component) (int, error) {
	switch c {
	case fault.ComponentTemperature:
		return extSensor, nil
	case fault.ComponentPower:
		return extSensor + 1, nil
	case fault.ComponentVoltage:
		return extSensor + 2, nil
	default:
		return 0, fmt.Errorf("component is %s: want temperature, power or voltage", c)
	}
}
