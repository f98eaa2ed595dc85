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
)

// Kind is a way in which a node ends, or a control in which no kernel dies.
type Kind struct {
	Name string
	// End is the right name for the end of the boot. 0: the kernel lives on, and no end of a boot may be reported.
	End lofamov1.BootEnd
	// Detail begins the text beside End.
	Detail string
	// Dead: the node must be FAILED, and no other. Otherwise no node may be FAILED.
	Dead bool
	// Words: a neighbour must receive the kernel's last words.
	Words bool
	how   how
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
)

const panicked = "Kernel panic - not syncing: "

// Kinds returns all ways. The order is part of the plan that a seed gives.
func Kinds() []Kind {
	return []Kind{
		{"panic: sysrq", lofamov1.BootEnd_BOOT_PANIC, panicked + "sysrq triggered crash", true, true, bySysrq},
		{"panic: null dereference", lofamov1.BootEnd_BOOT_PANIC, panicked, true, true, byNull},
		{"panic: NMI", lofamov1.BootEnd_BOOT_PANIC, panicked + "NMI: Not continuing", true, true, byNMI},
		{"soft lockup, then panic", lofamov1.BootEnd_BOOT_PANIC, panicked + "softlockup: hung tasks", true, true, bySoftLockup},
		{"hard lockup, then watchdog", lofamov1.BootEnd_BOOT_WATCHDOG, "watchdog0", true, false, byHardLockup},
		{"hung agent, then watchdog", lofamov1.BootEnd_BOOT_WATCHDOG, "watchdog0", true, false, byHungAgent},
		{"power cut", lofamov1.BootEnd_BOOT_POWER_LOSS, "", true, false, byPowerCut},
		{"reset", lofamov1.BootEnd_BOOT_POWER_LOSS, "", true, false, byReset},
		{"control: orderly reboot", lofamov1.BootEnd_BOOT_ORDERLY, "", false, false, byReboot},
		{"control: orderly power-off", lofamov1.BootEnd_BOOT_ORDERLY, "", false, false, byPowerOff},
		{"control: agent killed, kernel lives", 0, "", true, false, byKilledHalves},
	}
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

// NewPlan returns the plan for a seed and the number of nodes in the ring. The plan has the kinds of death whose names match the given
// expression; nil: all kinds.
func NewPlan(seed uint64, nodes int, only *regexp.Regexp) (*Plan, error) {
	p := &Plan{rnd: rand.New(rand.NewPCG(seed, 22)), nodes: nodes, kinds: Kinds()}
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
	s.Dark = p.rnd.IntN(3) == 0 && s.Kind.Dead && s.Kind.End != 0
	return s
}

// named reports whether the reported end of a boot is the right one.
func (k Kind) named(b *lofamov1.LastBoot) bool {
	return b.GetEnd() == k.End && strings.HasPrefix(b.GetDetail(), k.Detail)
}
