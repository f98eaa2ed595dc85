package halfcore

import (
	"time"

	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// SelfTestConfig sets the self-test of a half. Each half carries probes through its modules itself.
type SelfTestConfig struct {
	Interval  time.Duration // between tests of a module in use; 0: off
	IdleAfter time.Duration // without use, after which a module is tested no more
	First     uint64        // random: see selftest.Config
	Kept      []byte        // of an earlier life: its Snapshot
	Prove     bool          // this half was restarted, and has to pass before it is called normal
}

// NewSelfTest returns the machine of a half with this interval between ticks; nil: the self-test is off.
func NewSelfTest(cfg SelfTestConfig, mods []selftest.ModuleConfig, tick time.Duration, now time.Time) *selftest.Machine {
	if cfg.Interval <= 0 {
		return nil
	}
	m := selftest.New(selftest.Config{Modules: mods, Interval: cfg.Interval, IdleAfter: max(cfg.IdleAfter, cfg.Interval), Tick: tick,
		First: cfg.First}, now)
	m.Restore(now, cfg.Kept, cfg.Prove)
	return m
}

// FailingModules describes the fault of each failing module; why is the same without measured values.
func FailingModules(m *selftest.Machine) (words, why []string) {
	for _, r := range m.Failed() {
		words = append(words, "self-test: "+r.Name+" "+r.Why)
		why = append(why, r.Name+" "+r.Fault.String())
	}
	return words, why
}

// The time-outs of probes, and the floors below which no probe is late. The floors are far above the delay that a
// busy machine adds with a wake-up or two: a broken module is slower by whole retransmissions.
const (
	probeTimeout  = 500 * time.Millisecond
	localTimeout  = 2 * time.Second // this half does local work itself, as soon as it runs
	localFloor    = 50 * time.Millisecond
	linkFloor     = 100 * time.Millisecond
	networkFloor  = 250 * time.Millisecond
	linkLoss      = 0.15 // there and back, by a link that either end calls good
	networkLoss   = 0.15
	mailboxLoss   = 0.05 // the kernel drops messages while the other half is slow to read
	smallestProbe = 16
)

// LocalModule returns how a module within the half is tested.
func LocalModule(k selftest.Kind) selftest.ModuleConfig {
	c := selftest.ModuleConfig{Module: selftest.Module{Kind: k}, Timeout: localTimeout, Floor: localFloor, Local: true}
	switch k {
	case selftest.Register: // the watchdog uses it always; a word has 32 bits, and probes are made of words
		c.Sizes, c.Always = []int{smallestProbe, 64}, true
	case selftest.Reports: // one observation, and a whole digest
		c.Sizes = []int{smallestProbe, 400}
	default: // of one chunk, and of many with the last one short
		c.Sizes = []int{100, 5000}
	}
	return c
}

// MailboxModule returns how the mailbox is tested: doorbells have no payload, envelopes up to a datagram's.
func MailboxModule() selftest.ModuleConfig {
	return selftest.ModuleConfig{
		Module: selftest.Module{Kind: selftest.Mailbox}, Sizes: []int{smallestProbe, 300,
			1200}, Timeout: probeTimeout, Floor: linkFloor, Loss: mailboxLoss,
	}
}

// LinkModule returns how a link is tested: from the smallest frame to the largest envelope.
func LinkModule(d grid.Direction) selftest.ModuleConfig {
	return selftest.ModuleConfig{
		Module: selftest.Module{Kind: selftest.Link, Index: uint8(d.Index())}, Name: "link " + d.String(),
		Sizes: []int{smallestProbe, 250, 1100}, Timeout: probeTimeout, Floor: linkFloor, Loss: linkLoss, Partners: true,
	}
}

// RelayModule returns how the relay is tested.
func RelayModule() selftest.ModuleConfig {
	return selftest.ModuleConfig{
		Module: selftest.Module{Kind: selftest.Relay}, Sizes: []int{smallestProbe, 1000}, Timeout: probeTimeout, Floor: networkFloor,
		Loss: linkLoss, Partners: true,
		Foreign: true, // a message whose acknowledgement is lost goes another way as well
	}
}

// DirectModule returns how the direct rail by a service interface is tested.
func DirectModule(k uint8, name string) selftest.ModuleConfig {
	return selftest.ModuleConfig{
		Module: selftest.Module{Kind: selftest.Direct, Index: k}, Name: "direct rail " + name,
		Sizes: []int{smallestProbe, 300, 1200}, Timeout: probeTimeout, Floor: networkFloor, Loss: networkLoss, Foreign: true,
	}
}

// GossipModule returns how the gossip rail is tested.
func GossipModule() selftest.ModuleConfig {
	return selftest.ModuleConfig{
		Module: selftest.Module{Kind: selftest.Gossip}, Sizes: []int{smallestProbe,
			1000}, Timeout: probeTimeout, Floor: networkFloor, Loss: networkLoss, Foreign: true,
	}
}
