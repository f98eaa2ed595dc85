package selftest

import (
	"errors"
	"fmt"
	"time"
)

// Kind is a sort of logical module: "the collection of all basic blocks that participate in providing a
// service" (seed 000 §3.1).
type Kind uint8

// The kinds. They appear in copies and messages: append only.
const (
	Link     Kind = iota + 1 // frames of one torus link, to the neighbour and back
	Relay                    // messages to ourselves over the torus, by a neighbour
	Direct                   // the direct rail, by one service interface
	Gossip                   // the gossip rail
	Reports                  // encode, seal, open and decode a report
	Mailbox                  // messages to the other half and back
	Register                 // words of the register page, with their guards
	Bulk                     // chunk, checksum and reassemble a large object
)

var kindNames = [...]string{
	Link: "link", Relay: "relay", Direct: "direct rail", Gossip: "gossip rail", Reports: "report path", Mailbox: "mailbox",
	Register: "register path", Bulk: "bulk",
}

// String returns the kind's name.
func (k Kind) String() string {
	if k.Valid() {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Valid reports whether k is one of the kinds.
func (k Kind) Valid() bool { return k >= Link && k <= Bulk }

// Module names one module of a half.
type Module struct {
	Kind  Kind
	Index uint8 // for a Link grid.Direction.Index, for Direct the number of the service interface; otherwise 0
}

// String returns the kind, and the index if the module has one.
func (m Module) String() string {
	if m.Kind == Link || m.Kind == Direct {
		return fmt.Sprintf("%s %d", m.Kind, m.Index)
	}
	return m.Kind.String()
}

// MaxSlots is the maximum number of probes in one test of a module.
const MaxSlots = 6

// MaxPartners is the maximum number of partners of a module.
const MaxPartners = 8

// ModuleConfig is the test configuration of one module.
type ModuleConfig struct {
	Module Module
	Name   string // for people; empty: Module.String
	// Sizes are the sizes of the probes of one test, in bytes, at least MinProbe each. There should be one for each
	// code path that depends on the size.
	Sizes []int
	// Timeout is the time after which a probe counts as lost, detected at the next tick.
	Timeout time.Duration
	// Floor is the latency below which no probe is late, however steady the module is.
	Floor time.Duration
	// Loss is the share of probes that the path may lose without a fault of ours; 0 for a path within the machine.
	Loss float64
	// Foreign paths lead through networks of others, which may double packets.
	Foreign bool
	// Local modules do not need an answer from another process.
	Local bool
	// Partners are other nodes, which carry or return the probes: one of these nodes may cause a failure.
	Partners bool
	// Always modules are in use as long as the half runs.
	Always bool
}

// Config configures a machine.
type Config struct {
	Modules   []ModuleConfig
	Interval  time.Duration // between two tests of a module in use
	IdleAfter time.Duration // without use: testing of the module ends
	Tick      time.Duration // the owner's tick interval, when it is not late
	First     uint64        // number of the first probe: random, so that an echo from an earlier life never matches
}

// Validate returns an error for every value that is out of range.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("self-test: "+format, args...)) }
	if c.Interval <= 0 || c.IdleAfter < c.Interval || c.Tick <= 0 {
		bad("interval %s, idle after %s, tick %s: want all above 0, and idle after at least the interval", c.Interval, c.IdleAfter, c.Tick)
	}
	seen := map[Module]bool{}
	for _, m := range c.Modules {
		switch {
		case !m.Module.Kind.Valid() || seen[m.Module]:
			bad("module %s: of no kind, or there twice", m.Module)
		case len(m.Sizes) == 0 || len(m.Sizes) > MaxSlots:
			bad("module %s: %d probes: want 1 to %d", m.Module, len(m.Sizes), MaxSlots)
		case m.Timeout <= m.Floor || m.Floor <= 0:
			bad("module %s: timeout %s, floor %s: want a floor above 0 and a timeout above it", m.Module, m.Timeout, m.Floor)
		case m.Loss < 0 || m.Loss >= 1:
			bad("module %s: loss %v: want 0 to below 1", m.Module, m.Loss)
		}
		for _, s := range m.Sizes {
			if s < MinProbe || s > MaxProbe {
				bad("module %s: probe of %d bytes: want %d to %d", m.Module, s, MinProbe, MaxProbe)
			}
		}
		seen[m.Module] = true
	}
	return errors.Join(errs...)
}

// State is the test result of a module.
type State uint8

// The states.
const (
	Untested State = iota + 1 // no probe has come back yet
	Passed
	Failed
)

// String returns the state's name.
func (s State) String() string {
	switch s {
	case Untested:
		return "UNTESTED"
	case Passed:
		return "PASSED"
	case Failed:
		return "FAILED"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Fault is a way in which a module fails.
type Fault uint8

// The faults, the worst first.
const (
	Altered Fault = iota + 1
	Doubled
	Lost
	Late
)

// String returns the fault's name.
func (f Fault) String() string {
	switch f {
	case Altered:
		return "altered"
	case Doubled:
		return "doubled"
	case Lost:
		return "lost"
	case Late:
		return "late"
	}
	return fmt.Sprintf("Fault(%d)", uint8(f))
}

// Result is the test result of one module.
type Result struct {
	Module   Module
	Name     string
	State    State
	Fault    Fault         // of a failed module; otherwise 0
	Why      string        // in words: "late: 4 tests of 1,024 bytes over 20ms"; empty unless failed
	InUse    bool          // being tested, and not idle
	Proving  bool          // has not passed yet since the restart
	Blamed   uint8         // of a failed module with Partners: a bit for each partner (Carried) whose tests are bad; otherwise 0
	Age      time.Duration // since the last test ended; -1: never
	Latency  time.Duration // of the last test: its slowest probe
	Baseline time.Duration // usual latency for that size
	Limit    time.Duration // latency above which a probe of that size is late; 0: not learned yet

	// Counted since the start of the half.
	Tests                        uint64
	Lost, Altered, Doubled, Late uint64 // probes, including those within the bounds
}
