package deaths

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/testing/trial"
)

// tally is the result of some rounds.
type tally struct {
	rounds, failed, right, dark, waited, beyond int
	spared                                      int // failed rounds in which the node did not end in the planned way
	hung                                        int // rounds in which the kernel hung instead of panicking
	falseVerdicts, falsely                      int // and rounds with any
	verdicts, words, named, normal              []time.Duration
	wordsAfter                                  []time.Duration // from the verdict to the last words, of those that came later
}

// spared reports whether the node did not end in the planned way: the debugger failed, or there was no panic where one was planned.
func (r *Round) spared() bool {
	if len(r.Failures) == 0 {
		return false
	}
	f := r.Failures[0]
	return strings.HasPrefix(f, "debugger: ") || strings.HasPrefix(f, "control ") ||
		strings.HasPrefix(f, "console of ") && strings.Contains(f, panicked[:len("Kernel panic")])
}

// happened is the number of ends that came as planned.
func (t *tally) happened() int { return t.rounds - t.spared }

// add counts a round. bound is the documented one of the verdict.
func (t *tally) add(r *Round, bound time.Duration) {
	t.rounds++
	t.waited += r.Waited
	if t.falseVerdicts += len(r.False); len(r.False) > 0 {
		t.falsely++
	}
	if len(r.Failures) > 0 {
		t.failed++
	}
	if r.spared() {
		t.spared++
	}
	if r.Right {
		t.right++
	}
	if r.Dark {
		t.dark++
	}
	if r.Hung {
		t.hung++
	}
	if r.Verdict > bound {
		t.beyond++
	}
	if r.Verdict > 0 && r.Words > r.Verdict {
		t.wordsAfter = append(t.wordsAfter, r.Words-r.Verdict)
	}
	for _, d := range []struct {
		to *[]time.Duration
		of time.Duration
	}{{&t.verdicts, r.Verdict}, {&t.words, r.Words}, {&t.named, r.Named}, {&t.normal, r.Normal}} {
		if d.of > 0 {
			*d.to = append(*d.to, d.of)
		}
	}
}

// result is all that a record says.
type result struct {
	begins   []*Begin
	ends     map[string]*End
	rounds   map[string][]*Round
	kinds    map[string]*tally
	of       map[string]*[2]tally // by campaign: of all rounds, and of the deaths of kernels
	deaths   tally                // kernels that died
	controls tally                // kernels that lived on, or ended cleanly
	all      tally
	machines time.Duration
	reports  Reports
	unended  int
}

// evaluate reads the lines of a record.
func evaluate(lines []Line) *result {
	out := &result{ends: map[string]*End{}, rounds: map[string][]*Round{}, kinds: map[string]*tally{}, of: map[string]*[2]tally{}}
	begins, kinds := map[string]*Begin{}, map[string]Kind{}
	for _, k := range slices.Concat(Kinds(false), Kinds(true)) {
		out.kinds[k.Name], kinds[k.Name] = &tally{}, k
	}
	for _, l := range lines {
		switch {
		case l.Begin != nil:
			out.begins = append(out.begins, l.Begin)
			out.of[l.Begin.Campaign] = &[2]tally{}
			begins[l.Begin.Campaign] = l.Begin
		case l.Round != nil:
			r := l.Round
			out.rounds[r.Campaign] = append(out.rounds[r.Campaign], r)
			to := []*tally{&out.controls, &out.all}
			kind := kinds[r.Kind]
			if kind.kills() {
				to[0] = &out.deaths
			}
			if k := out.kinds[r.Kind]; k != nil {
				to = append(to, k)
			}
			if c := out.of[r.Campaign]; c != nil {
				if to = append(to, &c[0]); kind.kills() {
					to = append(to, &c[1])
				}
			}
			for _, t := range to {
				t.add(r, begins[r.Campaign].bound(kind))
			}
		case l.End != nil:
			e := l.End
			out.ends[e.Campaign] = e
			out.machines += e.Machines
			out.reports.add(e.Reports)
		}
	}
	out.unended = len(out.begins) - len(out.ends)
	return out
}

// bound returns the documented bound of the verdict of a kind.
func (b *Begin) bound(k Kind) time.Duration {
	switch {
	case b == nil:
		return 0
	case b.Cards && k.Fails != "node":
		return b.HalfBound
	}
	return b.Bound
}

func (r *Reports) add(o Reports) {
	r.Kept, r.Accepted, r.Replaced, r.Cut = r.Kept+o.Kept, r.Accepted+o.Accepted, r.Replaced+o.Replaced, r.Cut+o.Cut
	r.Lost, r.Doubled = append(r.Lost, o.Lost...), append(r.Doubled, o.Doubled...)
}

// Summary prints the results for a terminal.
func Summary(lines []Line) string {
	var b strings.Builder
	r := evaluate(lines)
	for _, k := range slices.Concat(Kinds(false), Kinds(true)) {
		if t := r.kinds[k.Name]; t.rounds > 0 {
			fmt.Fprintf(&b, "  %-36s %3d rounds, named rightly %d, %d false verdicts, verdict median %s, p99 %s, max %s\n", k.Name, t.rounds,
				t.right, t.falseVerdicts, short(trial.Quantile(t.verdicts, 0.5)), short(trial.Quantile(t.verdicts, 0.99)),
				short(trial.Quantile(t.verdicts, 1)))
		}
	}
	verdict := func(q float64) string { return short(trial.Quantile(r.deaths.verdicts, q)) }
	fmt.Fprintf(&b, "deaths of kernels: %d, named rightly %d; false verdicts: %d; verdict median %s, p99 %s, max %s; %.2f hours of machines\n",
		r.deaths.happened(), r.deaths.right, r.all.falseVerdicts, verdict(0.5), verdict(0.99), verdict(1), r.machines.Hours())
	fmt.Fprintf(&b, "reports kept by nodes: %d; accepted: %d, replaced by others %d, lost %d, doubled %d, not yet on disk at a death %d\n",
		r.reports.Kept, r.reports.Accepted, r.reports.Replaced, len(r.reports.Lost), len(r.reports.Doubled), r.reports.Cut)
	return b.String()
}

// Document prints docs/deaths.md from the record of campaigns.
func Document(lines []Line) []byte {
	var b bytes.Buffer
	b.WriteString(`# Deaths of kernels

` + "`make vm-campaign ROUNDS=50 SEED=1`" + ` boots a ring of three nodes and one supervisor in virtual machines without KVM, or up
to twelve nodes with ` + "`CAMPAIGN_FLAGS=-nodes=12`" + `. Then it plays rounds. In each round a random node dies in a random way and comes
back. The campaign compares the fault map with the ground truth. It exits with 1 after a failed round and keeps the logs then. With
` + "`CAMPAIGN_FLAGS=-record`" + ` it adds its results to ` + "`internal/testing/deaths/testdata/deaths.jsonl`" + `
and prints this page from that file.

` + "`make vm-ring`" + ` starts the same machines for a person, and prints how to query the supervisor and how to reach the consoles.
` + "`RING_FLAGS='-nodes 4 -cards'`" + ` chooses the number of nodes, and two kernels for each.

The kinds of death:

- *panic*: by sysrq; by a jump to address 0 in the kernel, which a debugger makes; by an NMI that the kernel does not know.
- *soft lockup*: the kernel loops with interrupts on, until its own detector panics. *Hard lockup*: it loops with interrupts off, until the
  hardware watchdog (i6300esb) resets the machine. *Hung agent*: the recovery daemon is stopped, so that it no longer feeds the watchdog.
  Instead of panicking, a kernel may hang, because it holds a lock that printing needs. Then the hardware watchdog resets the machine too.
  QEMU reports the reset to the campaign, which then expects the node to name the watchdog as the cause.
- *power cut*: QEMU is killed and started again. *Reset*: QEMU resets the machine at once.
- *controls*: an orderly reboot, an orderly power-off, and the end of all the agent's processes by signal 9 while the kernel lives.

A round fails unless

- the node is FAILED within 30 s, and no component is FAILED except its own and the links to it. In orderly controls nothing
  is FAILED. The column *beyond* counts verdicts later than the documented bound;
- after a panic, a neighbour receives the kernel's last words, and the supervisor shows them;
- after its boot, the node names the end of the former boot rightly, in exactly one event. A kernel that lives on names none;
- everything is NORMAL again;
- each report that entered the log of a node more than 1 s before its death is committed exactly once, by its identity. Nodes write reports
  to disk in the background ([ADR 8](adr/0008-reports-survive-their-half.md)), so younger ones may be lost: the page counts
  them (*not yet on disk*);
- the watch has every committed event once and in order.

In a third of the deaths the supervisor is paused first, so that reports wait on the disk of the dying node, and continues after the
node's return. These rounds measure no verdict and no words.

`)
	one, two := divided(lines)
	evaluate(one).summary(&b, one)
	if len(two) > 0 {
		evaluate(two).cards(&b, two)
	}
	r := evaluate(lines)
	r.campaigns(&b)
	r.failures(&b)
	return b.Bytes()
}

// divided separates the campaigns on nodes with one kernel from those with two.
func divided(lines []Line) (one, two []Line) {
	cards := map[string]bool{}
	for _, l := range lines {
		if l.Begin != nil {
			cards[l.Begin.Campaign] = l.Begin.Cards
		}
		if cards[l.campaign()] {
			two = append(two, l)
		} else {
			one = append(one, l)
		}
	}
	return one, two
}

// since returns the lines of campaigns that began after the end of the last one with a false verdict, and nil if none had one.
func (r *result) since(lines []Line) []Line {
	began, last := map[string]time.Time{}, time.Time{}
	for _, c := range r.begins {
		began[c.Campaign] = c.Began
		if r.of[c.Campaign][0].falseVerdicts == 0 {
			continue
		}
		end := c.Began
		if e := r.ends[c.Campaign]; e != nil {
			end = end.Add(e.Took)
		}
		if end.After(last) {
			last = end
		}
	}
	if last.IsZero() {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(lines), func(l Line) bool { return !began[l.campaign()].After(last) })
}

// clean returns a sentence with the totals since the last false verdict, or "" if there has been no false verdict.
func (r *result) clean(lines []Line) string {
	clean := r.since(lines)
	if clean == nil {
		return ""
	}
	c := evaluate(clean)
	return fmt.Sprintf("Since the last false verdict: campaigns: %d; hours of machines: %.2f; kernels that died: %d, "+
		"deaths named rightly: %d; failed rounds: %d.\n\n", len(c.begins), c.machines.Hours(), c.deaths.happened(), c.deaths.right, c.all.failed)
}

// summary prints the totals and the table of kinds.
func (r *result) summary(b io.Writer, lines []Line) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(b, format, args...) }
	p("## Results\n\n**%d passed, %d failed.** %d kernels died, and %d of these deaths were named rightly. %d controls, %d named rightly. "+
		"False verdicts: %d in %d rounds. In %d of the failed rounds the node did not end in the planned way: they count neither as deaths nor "+
		"as named. Kernels that hung instead of panicking: %d. Virtual machines ran for %.2f hours in all. The table of "+
		"[campaigns](#campaigns) shows the same by commit.\n\n",
		r.all.rounds-r.all.failed, r.all.failed, r.deaths.happened(), r.deaths.right, r.controls.happened(), r.controls.right,
		r.all.falseVerdicts, r.all.falsely, r.all.spared, r.all.hung, r.machines.Hours())
	p("From the death of a kernel to the verdict at the client: median %s, p99 %s, max %s (%d verdicts, %d beyond the documented bound).\n\n",
		quantile(r.deaths.verdicts, 0.5), quantile(r.deaths.verdicts, 0.99), quantile(r.deaths.verdicts, 1),
		len(r.deaths.verdicts), r.deaths.beyond)
	p("Last words of panicked kernels at the client: %d. In %d of these rounds they came after the verdict, at most %s after it.\n\n",
		len(r.deaths.words), len(r.deaths.wordsAfter), quantile(r.deaths.wordsAfter, 1))
	p("Reports that nodes kept: %d. Accepted once: %d; replaced by others: %d; **lost: %d; doubled: %d**; not yet on disk at a death: %d. "+
		"%d reports waited on the disk of a node that died beside a paused supervisor, in %d rounds.\n\n"+
		"*Lost* includes the reports that a node still held, uncommitted, when its campaign ended early.\n\n", r.reports.Kept, r.reports.Accepted,
		r.reports.Replaced, len(r.reports.Lost), len(r.reports.Doubled), r.reports.Cut, r.all.waited, r.all.dark)
	p("%s", r.clean(lines))
	p("| end | rounds | failed | named rightly | false verdicts | verdict: median | p99 | max | beyond | last words: median | max | " +
		"named: median | max | NORMAL: median | max |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, k := range Kinds(false) {
		t := r.kinds[k.Name]
		p("| %s | %d | %d | %d of %d | %d | %s | %s | %s | %d | %s | %s | %s | %s | %s | %s |\n", k.Name, t.rounds, t.failed, t.right,
			t.happened(), t.falseVerdicts, quantile(t.verdicts, 0.5), quantile(t.verdicts, 0.99), quantile(t.verdicts, 1), t.beyond,
			quantile(t.words, 0.5), quantile(t.words, 1), quantile(t.named, 0.5), quantile(t.named, 1),
			quantile(t.normal, 0.5), quantile(t.normal, 1))
	}
	p("\nAll times begin with the death: the panic, the reset, the end of QEMU or of the processes, the beginning of a lockup. " +
		"They are wall time on a machine that emulates all processors in software, so they say little about real machines.\n")
}

// campaigns prints the conditions of all campaigns.
func (r *result) campaigns(b io.Writer) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(b, format, args...) }
	p("\n## Campaigns\n\n| campaign | seed | nodes | commit | preset, bound | rounds | failed | kernels died | named rightly " +
		"| false verdicts | took | hours of machines | events | SICK without a death " +
		"| load averages before; after |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range r.begins {
		t, e := r.of[c.Campaign], r.ends[c.Campaign]
		if e == nil {
			e = &End{Load: "the campaign was ended from outside"}
		}
		nodes := fmt.Sprint(cmp.Or(c.Nodes, LeastNodes))
		if c.Cards {
			nodes += ", two kernels each"
		}
		if c.Only != "" {
			nodes += fmt.Sprintf("; only kinds that match `%s`", strings.ReplaceAll(c.Only, "|", `\|`))
		}
		p("| %s | %d | %s | %s | %s, %s | %d | %d | %d | %d | %d | %s | %.2f | %d | %d | %s; %s |\n", c.Campaign, c.Seed,
			nodes, c.Commit, c.Preset, trial.Milliseconds(c.Bound), t[0].rounds, t[0].failed, t[1].happened(),
			t[1].right, t[0].falseVerdicts, e.Took, e.Machines.Hours(), e.Events, e.Sick, c.Load, e.Load)
	}
	p("\n")
	said := map[string]bool{}
	for _, c := range r.begins {
		if text := fmt.Sprintf("%s. %s", c.Machine, c.Conditions); !said[text] {
			said[text] = true
			p("%s\n\n", strings.TrimSpace(text))
		}
	}
	if r.unended > 0 {
		p("%d campaigns were ended from outside: their rounds count, their hours and reports do not.\n", r.unended)
	}
}

// failures prints each failed round as it was.
func (r *result) failures(b io.Writer) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(b, format, args...) }
	p(`
## Failures

`)
	for _, c := range r.begins {
		if e := r.ends[c.Campaign]; e != nil && e.Note != "" {
			p("*%s.* %s\n\n", c.Campaign, strings.TrimSpace(e.Note))
		}
	}
	none := true
	for _, c := range r.begins {
		for _, round := range r.rounds[c.Campaign] {
			for _, f := range round.Failures {
				none = false
				p("- %s, round %d, %s of %s: %s\n", c.Campaign, round.Number, round.Kind, round.Node, trial.Cell(f))
			}
		}
		if e := r.ends[c.Campaign]; e != nil && e.Failure != "" {
			none = false
			p("- %s ended early: %s\n", c.Campaign, trial.Cell(e.Failure))
		}
	}
	if none {
		p("None.\n")
	}
}

// quantile writes a quantile of times for a table.
func quantile(times []time.Duration, q float64) string {
	return trial.Milliseconds(trial.Quantile(times, q))
}
