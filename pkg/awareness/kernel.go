package awareness

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// The last words of a kernel belong to a fault if the leader received them at most wordsBefore before the fault began, or wordsAfter
// after that: receivers state them in their next digest.
const (
	wordsBefore = 10 * time.Second
	wordsAfter  = time.Minute
)

// KernelFacts are the leader's facts about the kernel of a node's host, beside the map.
type KernelFacts struct {
	// Booted is when the node stated another boot than before; zero: never, or the boot before is not known.
	Booted time.Time
	// Panic is when receivers got a panic of the kernel, which no boot has followed; zero: never. Receivers are the halves that did, such
	// as n1-0-0/host.
	Panic     time.Time
	Receivers []string
	// GivenUp says that the node's recovery daemon has signed that it gave up both halves.
	GivenUp bool
	// Was is the committed verdict on the same kernel in the same fault; see SameFault.
	Was KernelVerdict
}

// SameFault reports whether a half is FAILED in both statuses of a node since the same time.
func SameFault(was, is NodeStatus, h fault.Half) bool {
	a, b := was.component(h.Component()), is.component(h.Component())
	return a.State == fault.Failed && b.State == fault.Failed && a.Since.Equal(b.Since)
}

// KernelVerdict says whether the kernel under a half has died, with the proof in words.
type KernelVerdict struct {
	Dead fault.KernelDead
	Why  string // a sentence for people; empty: nothing to say
}

// bootedAgain is the verdict by boot identities.
var bootedAgain = kernelDied("the machine has booted again since the fault began, with another boot identity")

func kernelDied(format string, args ...any) KernelVerdict {
	return KernelVerdict{fault.KernelIsDead, "its kernel is dead: " + fmt.Sprintf(format, args...)}
}

func agentDied(format string, args ...any) KernelVerdict {
	return KernelVerdict{fault.KernelIsAlive, "its kernel lives, only the agent died: " + fmt.Sprintf(format, args...)}
}

// JudgeKernel says whether the kernel under a FAILED half is dead. The fault of a node as a whole is about the host half's kernel.
//
//   - Boot identities prove a death: after the fault began, the machine stated another boot than before.
//   - A panic by netconsole, which is not authenticated, proves nothing by itself. It counts beside silence that others have
//     established, and with a second witness: another receiver while a quorum finds the whole node dead, or the node's own
//     DNP half on another kernel, whose bus to the host is silent. That half may itself be the receiver: a lying card cannot keep the
//     host half from answering the leader's challenge, unless the service network passes through the card (ADR 78).
//   - The other half proves that the kernel lives: it says on the same kernel that the half is dead, or it does so on another kernel
//     while the bus is not silent, so the kernel of the dead half answers there.
//   - The node's recovery daemon proves it too: it signs on the same kernel that it gave up both halves.
//
// A kernel that is proven dead stays dead while the same fault stands, unless the other half proves that it lives: newer last words
// replace earlier ones and their witnesses. Everything else is unknown. On one kernel, the words of a node about itself are no last words.
func JudgeKernel(st NodeStatus, h fault.Half, f KernelFacts) KernelVerdict {
	if st.State == fault.Normal {
		return KernelVerdict{}
	}
	own, other := st.component(h.Component()), st.component(h.Other().Component())
	if own.State != fault.Failed || st.Stop.Reason != 0 {
		return KernelVerdict{}
	}
	shared := st.Platform == fault.PlatformSharedKernel
	ofHost := h == fault.HalfHost || shared // facts are about the host's kernel
	if ofHost && f.Booted.After(own.Since) {
		return bootedAgain
	}
	reporter := fault.Origin{Node: st.ID, Half: h.Other()}.String()
	lives := st.State != fault.Failed && st.State != fault.Unknown && (other.State == fault.Normal || other.State == fault.Sick)
	busSilent := lives && st.component(fault.ComponentBus).says(reporter, fault.KindSilence)
	if lives && own.says(reporter, fault.KindWatchdog) {
		switch {
		case shared:
			return agentDied("%s on the same kernel reports that the half is dead", reporter)
		case st.Platform == fault.PlatformDPU && !busSilent:
			return agentDied("it answers %s over the bus", reporter)
		}
	}
	if f.Was.Dead == fault.KernelIsDead {
		return f.Was
	}
	if shared && f.GivenUp && !lives {
		return agentDied("the node's recovery daemon reports that it gave up both halves, and starts them again ever more rarely")
	}
	if !ofHost || f.Panic.IsZero() || f.Panic.Before(own.Since.Add(-wordsBefore)) || f.Panic.After(own.Since.Add(wordsAfter)) {
		return KernelVerdict{}
	}
	return judgePanic(&st, f.Receivers, st.Platform == fault.PlatformDPU && busSilent, reporter)
}

// judgePanic says whether a panic that halves received proves a death. reporter is the other half. busSilent: it is on another kernel,
// and the bus is silent to it.
func judgePanic(st *NodeStatus, received []string, busSilent bool, reporter string) KernelVerdict {
	receivers := others(received, st.ID)
	if busSilent && slices.Contains(received, reporter) {
		receivers = append(receivers, reporter)
	}
	if len(receivers) == 0 {
		return KernelVerdict{}
	}
	quorum := st.State == fault.Failed && st.Rule == ruleQuorum.String() && !st.SingleWitness
	switch by := strings.Join(receivers, " and "); {
	case quorum && len(receivers) > 1:
		return kernelDied("%s received its panic, and a quorum finds both halves silent", by)
	case busSilent:
		return kernelDied("%s received its panic, and the bus is silent to %s", by, reporter)
	default:
		return KernelVerdict{Why: "whether its kernel is dead is not proven: " + by +
			" received its panic, which counts only with silence and a second witness"}
	}
}

// others returns the nodes of halves except one node, each once and sorted.
func others(halves []string, but fault.NodeID) (out []string) {
	for _, half := range halves {
		if node := fault.NodeOf(half); node != but && !slices.Contains(out, string(node)) {
			out = append(out, string(node))
		}
	}
	slices.Sort(out)
	return out
}

// component returns the status of a component; the zero status if the node lacks it.
func (st *NodeStatus) component(c fault.Component) ComponentStatus {
	for _, s := range st.Components {
		if s.Component == c {
			return s
		}
	}
	return ComponentStatus{}
}

// says reports whether the observer calls the component FAILED by evidence of that kind.
func (s ComponentStatus) says(observer string, k fault.Kind) bool {
	return slices.ContainsFunc(s.Evidence, func(e EvidenceStatus) bool {
		return e.Observer == observer && e.Kind == k && e.State == fault.Failed
	})
}

// MachineTrace holds the traces of a machine's death, and the verdict on its kernels.
type MachineTrace struct {
	Facts    KernelFacts
	Words    string    // the kernel's last words, for people; empty: none
	WordsAt  time.Time // when the leader received them
	LastBoot string    // how the boot before the present one ended, for people; it counts from Facts.Booted on
	Kernels  [2]KernelVerdict
}

// Bounds of the texts of an incident, in bytes.
const (
	maxLastWords = 1024
	maxLastBoot  = 512
)

// Zero reports whether there is no trace.
func (t *MachineTrace) Zero() bool {
	return t.Facts.Booted.IsZero() && t.Words == "" && t.Kernels == ([2]KernelVerdict{})
}

// began returns when the present fault of the incident began. ok is false if an earlier leader has reopened the incident: the time is
// not stored.
func (s *incident) began() (since time.Time, ok bool) {
	if s.Reopened == 0 {
		return s.Since, true
	}
	return s.again, !s.again.IsZero()
}

// reopen counts the reopening of a changed incident, whose earlier fault has ended.
func (l *Incidents) reopen(s *incident, c *cluster) {
	s.Reopened++
	s.dropTraces()
	if s.again = c.since; s.again.IsZero() || s.again.After(l.now) {
		s.again = l.now
	}
}

// dropTraces drops the traces of another fault.
func (in *Incident) dropTraces() { in.LastWords, in.LastBoot, in.Kernel = "", "", KernelVerdict{} }

// outweighs reports whether an incident takes a verdict in place of an earlier one: only a panic shows that a kernel died after its agent.
func (v KernelVerdict) outweighs(was KernelVerdict) bool {
	if was.Dead == 0 {
		return v != (KernelVerdict{})
	}
	return was.Dead == fault.KernelIsAlive && v.Dead == fault.KernelIsDead && v != bootedAgain
}

// trace adds the traces of machines to the standing incidents of FAILED nodes and halves. A trace from before the fault belongs to
// an earlier one, and a boot after the fault has ended to none. The first proof stays: after a reboot by an operator, a fault of the
// agent alone is still one. A panic with enough witnesses is a death after that of the agent.
func (l *Incidents) trace(news map[fault.NodeID]MachineTrace) {
	for id, t := range news {
		if t.Zero() {
			delete(l.traces, id)
		} else {
			l.traces[id] = t
		}
	}
	if len(l.traces) == 0 {
		return
	}
	for _, s := range l.standing {
		t, ok := l.traces[s.Root.Node]
		if !ok || s.Fault != fault.Failed || s.Root.Component < fault.ComponentNode || s.Root.Component > fault.ComponentDNP {
			continue
		}
		words, boot, kernel := s.LastWords, s.LastBoot, s.Kernel
		half := fault.HalfHost
		if s.Root.Component == fault.ComponentDNP {
			half = fault.HalfDNP
		}
		since, known := s.began()
		if known && t.Words != "" && !t.WordsAt.Before(since.Add(-wordsBefore)) && (words == "" || !t.WordsAt.After(since.Add(wordsAfter))) {
			words = fault.Cut(t.Words, maxLastWords)
		}
		if is := t.Kernels[half-1]; is.outweighs(kernel) {
			kernel = is
		}
		if known && t.Facts.Booted.After(since) && (s.Until.IsZero() || !t.Facts.Booted.After(s.Until)) {
			boot = fault.Cut(t.LastBoot, maxLastBoot)
			if kernel.Dead == 0 && half == fault.HalfHost {
				kernel = bootedAgain
			}
		}
		if words != s.LastWords || boot != s.LastBoot || kernel != s.Kernel {
			in := l.change(s)
			in.LastWords, in.LastBoot, in.Kernel = words, boot, kernel
		}
	}
}
