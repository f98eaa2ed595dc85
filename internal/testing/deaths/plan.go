// Package deaths plays rounds of random deaths on real kernels, in virtual machines, and compares the fault map with the
// ground truth. The nodes of a ring and one supervisor boot once; then in each round one node dies in a way that
// plan.go lists, and comes back. run.go plays a round. document.go prints docs/deaths.md from the record.
//
// Start reading with Kinds and Run. The package needs QEMU; its tests need only text.
package deaths

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/trial"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Kind is a way in which a node or a part of it ends, or a control in which no kernel dies.
type Kind struct {
	Name string
	// End is the right name for the end of the host's boot. 0: no end of a boot may be reported.
	End lofamov1.BootEnd
	// Detail begins the text beside End.
	Detail string
	// Fails is the component that must be FAILED: "node", "host", "dnp" or "bus". No other may be, except those that it explains.
	// Empty: nothing may be FAILED.
	Fails string
	// Words: a neighbour must receive the kernel's last words.
	Words bool
	how   how
	on    on
}

// how selects the code that brings the end about.
type how uint8

const (
	bySysrq how = iota + 1
	byNull
	byNMI
	bySoftLockup
	byHardLockup
	byHungAgent
	byPowerCut
	byReset
	byReboot
	byPowerOff
	byKilledHalves
	byPulledCable // of the window between two kernels
	byLostPackets // in that window
)

// on selects the machines of the node: its host, its card, or both. A node with one kernel has only a host.
type on uint8

const (
	onHost on = iota + 1
	onCard
	onBoth
)

const panicked = "Kernel panic - not syncing: "

// Kinds returns all ways, of nodes with one kernel or with two. The order is part of the plan that a seed gives.
func Kinds(cards bool) []Kind {
	const panics, watchdog, power, orderly = lofamov1.BootEnd_BOOT_PANIC, lofamov1.BootEnd_BOOT_WATCHDOG, lofamov1.BootEnd_BOOT_POWER_LOSS,
		lofamov1.BootEnd_BOOT_ORDERLY
	if cards {
		return []Kind{
			{"host panic: sysrq", panics, panicked + "sysrq triggered crash", "host", true, bySysrq, onHost},
			{"host panic: null dereference", panics, panicked, "host", true, byNull, onHost},
			{"host panic: NMI", panics, panicked + "NMI: Not continuing", "host", true, byNMI, onHost},
			{"host power cut", power, "", "host", false, byPowerCut, onHost},
			{"host reset", power, "", "host", false, byReset, onHost},
			{"card panic: sysrq", 0, "", "dnp", false, bySysrq, onCard},
			{"card power cut", 0, "", "dnp", false, byPowerCut, onCard},
			{"host and card panic: sysrq", panics, panicked + "sysrq triggered crash", "node", true, bySysrq, onBoth},
			{"host and card power cut", power, "", "node", false, byPowerCut, onBoth},
			{"window cut: cable pulled", 0, "", "bus", false, byPulledCable, onBoth},
			{"window cut: all packets lost", 0, "", "bus", false, byLostPackets, onBoth},
			{"control: agent of the host killed, kernel lives", 0, "", "host", false, byKilledHalves, onHost},
			{"control: orderly reboot of the host", orderly, "", "", false, byReboot, onHost},
		}
	}
	return []Kind{
		{"panic: sysrq", panics, panicked + "sysrq triggered crash", "node", true, bySysrq, onHost},
		{"panic: null dereference", panics, panicked, "node", true, byNull, onHost},
		{"panic: NMI", panics, panicked + "NMI: Not continuing", "node", true, byNMI, onHost},
		{"soft lockup, then panic", panics, panicked + "softlockup: hung tasks", "node", true, bySoftLockup, onHost},
		{"hard lockup, then watchdog", watchdog, "watchdog0", "node", false, byHardLockup, onHost},
		{"hung agent, then watchdog", watchdog, "watchdog0", "node", false, byHungAgent, onHost},
		{"power cut", power, "", "node", false, byPowerCut, onHost},
		{"reset", power, "", "node", false, byReset, onHost},
		{"control: orderly reboot", orderly, "", "", false, byReboot, onHost},
		{"control: orderly power-off", orderly, "", "", false, byPowerOff, onHost},
		{"control: agent killed, kernel lives", 0, "", "node", false, byKilledHalves, onHost},
	}
}

// cuts reports whether the window between two kernels is cut.
func (k Kind) cuts() bool { return k.how == byPulledCable || k.how == byLostPackets }

// ends reports whether a boot ends.
func (k Kind) ends() bool { return !k.cuts() && k.how != byKilledHalves }

// kills reports whether a kernel dies.
func (k Kind) kills() bool { return k.ends() && k.Fails != "" }

// cause is the right cause of the verdict.
func (k Kind) cause() lofamov1.Cause {
	return map[string]lofamov1.Cause{"node": lofamov1.Cause_NODE, "host": lofamov1.Cause_HOST, "dnp": lofamov1.Cause_DNP,
		"bus": lofamov1.Cause_BUS}[k.Fails]
}

// fault is the ground truth of a round with this kind on a node; false: nothing fails.
func (k Kind) fault(node int) (trial.Fault, bool) {
	kind := map[string]string{"node": "kill-node", "host": "kill-host", "dnp": "kill-dnp", "bus": "bus"}[k.Fails]
	return trial.Fault{At: grid.Coord{X: node}, Kind: kind}, kind != ""
}

// Step is one round of a plan.
type Step struct {
	Kind Kind
	Node int // index in the ring, from 0
	// Dark: the supervisor is paused before the death, so that reports of the node wait on its disk, and continues when
	// the node is back.
	Dark bool
}

// Plan is an endless sequence of rounds. Each kind comes once in every sequence of all kinds, in a random order.
type Plan struct {
	rnd   *rand.Rand
	nodes int
	kinds []Kind
	next  []Kind
}

// NewPlan returns the plan for a seed and the number of nodes in the ring, which have one kernel or two. The plan has the kinds of death
// whose names match the given expression; nil: all kinds.
func NewPlan(seed uint64, nodes int, cards bool, only *regexp.Regexp) (*Plan, error) {
	p := &Plan{rnd: rand.New(rand.NewPCG(seed, 22)), nodes: nodes, kinds: Kinds(cards)}
	if only != nil {
		p.kinds = slices.DeleteFunc(p.kinds, func(k Kind) bool { return !only.MatchString(k.Name) })
	}
	if len(p.kinds) == 0 {
		return nil, fmt.Errorf("only: no kind of death matches %q", only)
	}
	return p, nil
}

// Next returns the next round.
func (p *Plan) Next() Step {
	if len(p.next) == 0 {
		p.next = slices.Clone(p.kinds)
		p.rnd.Shuffle(len(p.next), func(i, j int) { p.next[i], p.next[j] = p.next[j], p.next[i] })
	}
	s := Step{Kind: p.next[0], Node: p.rnd.IntN(p.nodes)}
	p.next = p.next[1:]
	s.Dark = p.rnd.IntN(3) == 0 && s.Kind.kills() && s.Kind.End != 0
	return s
}

// named reports whether the reported end of a boot is the right one.
func (k Kind) named(b *lofamov1.LastBoot) bool {
	return b.GetEnd() == k.End && strings.HasPrefix(b.GetDetail(), k.Detail)
}
