package awareness

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// kernel prints the verdicts on the kernels of a node.
func (s *scenario) kernel(f []string) error {
	st, ok := s.w.m.Node(fault.NodeID(f[0]))
	if !ok {
		return fmt.Errorf("no node %s", f[0])
	}
	var facts KernelFacts
	for _, arg := range f[1:] {
		name, value, _ := strings.Cut(arg, "=")
		if name == "was" {
			facts.Was = KernelVerdict{fault.KernelIsDead, "proven before"}
			continue
		}
		if name == "given-up" {
			facts.GivenUp = true
			continue
		}
		words := strings.Split(value, ",")
		ago, err := time.ParseDuration(words[0])
		if err != nil {
			return err
		}
		switch at := s.w.now.Add(-ago); name {
		case "booted":
			facts.Booted = at
		case "panic":
			facts.Panic = at
			for _, by := range words[1:] {
				if !strings.Contains(by, "/") {
					by += "/host"
				}
				facts.Receivers = append(facts.Receivers, by)
			}
		default:
			return fmt.Errorf("no fact %s", name)
		}
	}
	for _, h := range halves {
		v := JudgeKernel(st, h, facts)
		s.printf("%s kernel dead: %q %s", h, v.Dead, v.Why)
	}
	return nil
}

// TestTracesOfMachineBelongToIncident: last words, the end of the boot and the verdict on the kernel join the incident of their machine,
// whether they come before it opens, while it stands, or after the machine is back. Traces of an earlier death do not.
func TestTracesOfMachineBelongToIncident(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	const words, boot = "last kernel words: Kernel panic", "last boot ended by: Kernel panic"
	dead := KernelVerdict{fault.KernelIsDead, "two witnesses"}
	alive := KernelVerdict{fault.KernelIsAlive, "the other half reports"}
	type trace = MachineTrace
	const node, host, dnp = fault.ComponentNode, fault.ComponentHost, fault.ComponentDNP
	before, after := KernelFacts{Booted: at.Add(-time.Minute)}, KernelFacts{Booted: at.Add(time.Minute)}
	for name, tt := range map[string]struct {
		root        fault.Component
		give        MachineTrace
		words, boot string
		kernel      KernelVerdict
	}{
		"words from shortly before":     {node, trace{Words: words, WordsAt: at.Add(-time.Second)}, words, "", KernelVerdict{}},
		"words of an earlier death":     {node, trace{Words: words, WordsAt: at.Add(-time.Hour)}, "", "", KernelVerdict{}},
		"a verdict":                     {host, trace{Kernels: [2]KernelVerdict{alive, {}}}, "", "", alive},
		"a verdict on the other kernel": {dnp, trace{Kernels: [2]KernelVerdict{dead, {}}}, "", "", KernelVerdict{}},
		"a boot after the fault":        {node, trace{Facts: after, LastBoot: boot}, "", boot, bootedAgain},
		"a boot before the fault":       {node, trace{Facts: before, LastBoot: boot}, "", "", KernelVerdict{}},
		"a boot after the agent died":   {host, trace{Facts: after, LastBoot: boot, Kernels: [2]KernelVerdict{alive, {}}}, "", boot, alive},
		"bad ports":                     {node, trace{Facts: after, LastBoot: boot, Words: words, WordsAt: at}, "", "", KernelVerdict{}},
		"a sensor": {fault.ComponentMemory, trace{Words: words, WordsAt: at, Kernels: [2]KernelVerdict{dead, dead}}, "", "",
			KernelVerdict{}},
	} {
		t.Run(name, func(t *testing.T) {
			in := &Incident{ID: "x", State: IncidentOpen, Root: Part{Node: "n1", Component: tt.root}, Fault: fault.Failed, Since: at, Version: 1}
			if name == "bad ports" {
				in.Fault = fault.Sick
			}
			l := &Incidents{standing: []*incident{{Incident: in}}, isChanged: map[*Incident]bool{}, traces: map[fault.NodeID]MachineTrace{}}
			for range 2 { // the second time changes nothing
				l.trace(map[fault.NodeID]MachineTrace{"n1": tt.give})
			}
			got := l.standing[0]
			if got.LastWords != tt.words || got.LastBoot != tt.boot || got.Kernel != tt.kernel {
				t.Errorf("%q, %q, %+v", got.LastWords, got.LastBoot, got.Kernel)
			}
			changed := tt.words+tt.boot != "" || tt.kernel != (KernelVerdict{})
			if changed != (got.Version == 2) || changed != (len(l.changed) == 1) {
				t.Errorf("version %d, %d changes", got.Version, len(l.changed))
			}
			if l.trace(map[fault.NodeID]MachineTrace{"n1": {}}); len(l.traces) != 0 {
				t.Errorf("%d traces are kept", len(l.traces))
			}
		})
	}
}

// TestTracesCountWithinTheFault: traces from after the end of a fault, or from before a reopening, are about another death. Later last
// words replace none that came with the fault. A panic with enough witnesses is a death after that of the agent; a boot is not.
func TestTracesCountWithinTheFault(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	dead := KernelVerdict{fault.KernelIsDead, "two witnesses"}
	alive := KernelVerdict{fault.KernelIsAlive, "the other half reports"}
	booted := func(d time.Duration) MachineTrace {
		return MachineTrace{Facts: KernelFacts{Booted: at.Add(d)}, LastBoot: "end"}
	}
	said := func(d time.Duration) MachineTrace { return MachineTrace{Words: "new", WordsAt: at.Add(d)} }
	type verdict = [2]KernelVerdict
	for name, tt := range map[string]struct {
		is    Incident // beside the fields of a FAILED node since at
		again time.Duration
		give  MachineTrace
		want  Incident
	}{
		"a boot before the end": {Incident{State: IncidentRecovering, Until: at.Add(2 * time.Minute)}, 0, booted(time.Minute),
			Incident{LastBoot: "end", Kernel: bootedAgain}},
		"a reboot after the end":      {Incident{State: IncidentRecovering, Until: at.Add(time.Minute)}, 0, booted(2 * time.Minute), Incident{}},
		"a boot before the reopening": {Incident{State: IncidentOpen, Reopened: 1}, 2 * time.Minute, booted(time.Minute), Incident{}},
		"a boot after the reopening": {Incident{State: IncidentOpen, Reopened: 1}, time.Minute, booted(2 * time.Minute),
			Incident{LastBoot: "end", Kernel: bootedAgain}},
		"a boot, reopened at an unknown time": {Incident{State: IncidentOpen, Reopened: 1}, 0, booted(time.Minute), Incident{}},
		"words before the reopening":          {Incident{State: IncidentOpen, Reopened: 1}, time.Hour, said(0), Incident{}},
		"the first words come late":           {Incident{State: IncidentOpen}, 0, said(time.Hour), Incident{LastWords: "new"}},
		"more words soon":                     {Incident{LastWords: "old"}, 0, said(30 * time.Second), Incident{LastWords: "new"}},
		"more words late":                     {Incident{LastWords: "old"}, 0, said(2 * time.Minute), Incident{LastWords: "old"}},
		"a panic after the agent died":        {Incident{Kernel: alive}, 0, MachineTrace{Kernels: verdict{dead}}, Incident{Kernel: dead}},
		"a boot after the agent died":         {Incident{Kernel: alive}, 0, MachineTrace{Kernels: verdict{bootedAgain}}, Incident{Kernel: alive}},
		"an agent that lives after a death":   {Incident{Kernel: dead}, 0, MachineTrace{Kernels: verdict{alive}}, Incident{Kernel: dead}},
	} {
		t.Run(name, func(t *testing.T) {
			in := tt.is
			in.ID, in.Root, in.Fault, in.Since = "x", Part{Node: "n1", Component: fault.ComponentNode}, fault.Failed, at
			s := &incident{Incident: &in}
			if tt.again != 0 {
				s.again = at.Add(tt.again)
			}
			l := &Incidents{standing: []*incident{s}, isChanged: map[*Incident]bool{}, traces: map[fault.NodeID]MachineTrace{}}
			l.trace(map[fault.NodeID]MachineTrace{"n1": tt.give})
			if s.LastWords != tt.want.LastWords || s.LastBoot != tt.want.LastBoot || s.Kernel != tt.want.Kernel {
				t.Errorf("%q, %q, %+v", s.LastWords, s.LastBoot, s.Kernel)
			}
		})
	}
}

// TestReopenedIncidentDropsTraces: the next fault of the same node is not the death that the incident described.
func TestReopenedIncidentDropsTraces(t *testing.T) {
	l := newLedger(t, cube)
	l.kill("n1-1-1")
	l.update(time.Second)
	l.trace(map[fault.NodeID]MachineTrace{"n1-1-1": {Words: "panic", WordsAt: l.now,
		Kernels: [2]KernelVerdict{{fault.KernelIsDead, "two witnesses"}, {}}}})
	if in := l.standing[0]; in.LastWords == "" || in.Kernel.Dead != fault.KernelIsDead {
		t.Fatalf("%+v", in.Incident)
	}
	l.heal("n1-1-1")
	l.update(time.Second)
	l.trace(map[fault.NodeID]MachineTrace{"n1-1-1": {}})
	l.update(time.Second)
	l.kill("n1-1-1")
	l.update(time.Second)
	if in := l.standing[0]; in.Reopened != 1 || in.LastWords != "" || in.Kernel != (KernelVerdict{}) ||
		in.again.Before(l.now.Add(-time.Second)) {
		t.Errorf("%+v, again at %s, now %s", in.Incident, in.again, l.now)
	}
}
