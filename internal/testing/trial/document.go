package trial

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Document prints docs/trials.md from the records of trials, and from the score of the incidents in the simulator; nil: none.
func Document(records []*Record, simulated *IncidentScore) []byte {
	var b bytes.Buffer
	b.WriteString(`# Trials

A trial injects random faults and load into a local cluster of real processes
and compares the fault map with the ground truth.
` + "`make trial MINUTES=60 DIMS=3x3x3 LOAD=16 SEED=1`" + ` runs one.
It exits with 1 after a violation and keeps the cluster's logs then. With
` + "`TRIAL_FLAGS=-record`" + ` it adds its results to ` + "`internal/testing/trial/testdata/trials.json`" + ` and prints this page from
that file. With ` + "`-unharmed supervisors,daemons`" + ` no step ends or stops a supervisor or a recovery daemon, so that all live for
the whole trial. The supervisors then keep 1,000 events of history and 100 closed incidents. Slopes leave out the first 2 minutes of a
process, and the first 15 of a supervisor: until then its bounded buffers fill, even at about 70 reports a minute, the rate of the
slowest trial. From trial 11 on, the slopes of supervisors also leave out the time until 15 minutes after a change of the leader, because a
leader needs more memory. From trial 18 on, a slope covers the last hour only.
The longest to fill are the leader's 1,024 reports, 1,024 changes for watchers, and 1,100 entries of raft's log.

The invariants:

- No component, node or group is FAILED unless a fault explains it by [the rules](awareness.md).
- Every fault is named within its bound, multiplied by 10 without load, 20 beside 4 busy loops, and 40 beside 16. *Beyond* counts the
  faults that took longer than the plain bound. After an outage of supervisors, 15 s more are allowed, times 2 or 4 under load.
- Everything is NORMAL again within a bound after the heal. Load multiplies the bound by 2 or 4.
- The watch has every committed event once and in order, and equals the lists and the history.
- No process that was sampled for an hour grows by more than 1 MB of anonymous memory, 10 descriptors or 10 threads an hour. Its resident
  pages of files, the program and the store's database, may grow up to the size of these files: the kernel takes them back when it needs
  memory. They count when the files grow by more than 1 MB an hour too. Shared memory counts as anonymous.
- Policies, masks and maintenance marks that a supervisor acknowledged are still there after changes of the leader.
- The incidents that are not CLOSED are [the injected faults](#incidents), and all are CLOSED after the heal.

The bounds of halves and nodes are the documented ones. Those of other faults follow from the periods and include one hold-off.
`)
	rounds, faults, violations, took := 0, 0, 0, time.Duration(0)
	for _, r := range records {
		rounds, violations, took = rounds+r.Rounds, violations+len(r.Violations), took+r.Took
		faults += r.Steps[Inject.String()]
	}
	fmt.Fprintf(&b, "\n## Summary\n\n%d trials took %s: %d rounds, %d faults, %d violations.\n\n", len(records), took, rounds, faults,
		violations)
	b.WriteString("| trial | torus | preset | busy loops | halves restart | seed | commit | took | rounds | faults | " +
		"changes of the leader | events | SICK without a fault | violations |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for i, r := range records {
		fmt.Fprintf(&b, "| [%d](#trial-%d) | %s | %s | %d | %s | %d | %s | %s | %d | %d | %d | %d | %d | %d |\n", i+1, i+1, r.Dims, r.Preset,
			r.Load, yes(r.Restarts), r.Seed, r.Commit, r.Took, r.Rounds, r.Steps[Inject.String()], r.Leaders, r.Events, r.Sick, len(r.Violations))
	}
	printIncidents(&b, records, simulated)
	for i, r := range records {
		fmt.Fprintf(&b, "\n## Trial %d\n\n", i+1)
		r.print(&b)
	}
	return b.Bytes()
}

// printIncidents prints how the incidents differ from the injected faults, in the simulator and in the trials.
func printIncidents(b *bytes.Buffer, records []*Record, simulated *IncidentScore) {
	b.WriteString(`
## Incidents

Every round has one or two faults, in a trial up to three. Then each fault that no other one hides must have exactly one incident
that is not CLOSED: the fault is its root cause. The incidents must be the same under another leader, and CLOSED after the heal.
*Missed* are faults without an incident, *spurious* are incidents without a fault; they include all that a round opened and that no
other continues. *Wrongly merged* are two cables of one node: the map blames the node.

`)
	b.WriteString("| where | rounds | with several faults | with another leader | faults | missed | spurious | wrongly merged |\n" +
		"|---|---|---|---|---|---|---|---|\n")
	line := func(where string, s *IncidentScore) {
		fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d | %d | %d (%.1f %%) |\n", where, s.Rounds, s.Several, s.Leaders, s.Faults, s.Missed,
			s.Spurious, s.Merged, 100*float64(s.Merged)/float64(max(1, s.Rounds)))
	}
	if simulated != nil {
		line("simulator", simulated)
	}
	for i, r := range records {
		if r.Incidents != nil {
			line(fmt.Sprintf("[trial %d](#trial-%d), processes", i+1, i+1), r.Incidents)
		}
	}
	if simulated != nil {
		fmt.Fprintf(b, "\nSimulator: %s; commit %s, %s, took %s, %s. Load averages before and after: %s. Repeat: `%s`.\n", simulated.Where,
			simulated.Commit, simulated.Began.Format("2006-01-02 15:04 MST"), simulated.Took, simulated.Of, simulated.Load, simulated.Again)
		simulated.print(b)
	}
	for i, r := range records {
		if r.Incidents != nil {
			fmt.Fprintf(b, "\nTrial %d, by the watch of a client:\n", i+1)
			r.Incidents.print(b)
		}
	}
}

// print prints the kinds of faults of a score.
func (s *IncidentScore) print(b *bytes.Buffer) {
	b.WriteString("\n| fault | injected | alone | rounds with a difference | most incidents at once, alone | most ever opened, alone |\n" +
		"|---|---|---|---|---|---|\n")
	for _, k := range slices.SortedFunc(slices.Values(s.Kinds), func(x, y *KindScore) int { return strings.Compare(x.Kind, y.Kind) }) {
		fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d |\n", k.Kind, k.Faults, k.Alone, k.Wrong, k.Most, k.Opened)
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// print prints one trial.
func (r *Record) print(b *bytes.Buffer) {
	var flags []string
	if r.Restarts {
		flags = append(flags, "-restart")
	}
	if unharmed := r.Unharmed.String(); unharmed != "" {
		flags = append(flags, "-unharmed "+unharmed)
	}
	again := strings.Join(flags, " ")
	if strings.Contains(again, " ") {
		again = "'" + again + "'"
	}
	if again != "" {
		again = " TRIAL_FLAGS=" + again
	}
	fmt.Fprintf(b, "%s, %s. Load averages before and after: %s; %s. Repeat: `make trial DIMS=%s SEED=%d LOAD=%d%s`.\n\n",
		r.Began.Format("2006-01-02 15:04 MST"), r.Machine, r.LoadBefore, r.LoadAfter, r.Dims, r.Seed, r.Load, again)
	var steps []string
	for _, s := range slices.Sorted(maps.Keys(r.Steps)) {
		steps = append(steps, fmt.Sprintf("%s %d", s, r.Steps[s]))
	}
	fmt.Fprintf(b, "Steps: %s. Calls refused: %d; without a clear answer: %d.\n", strings.Join(steps, ", "), r.Refused, r.Unsure)
	if r.Failure != "" {
		fmt.Fprintf(b, "\n**The trial ended early: %s**\n", Cell(r.Failure))
	}
	for _, v := range r.Violations {
		fmt.Fprintf(b, "\n**Violation: %s**\n", Cell(v))
	}
	delays(b, "fault", "not named", r.Faults)
	delays(b, "", "", r.Normal)
	usages(b, r.Usages)
}

// usages prints the consumption of each role, and the parts of its memory.
func usages(b *bytes.Buffer, all []Usage) {
	b.WriteString("\n| process | processes | memory, most | descriptors, most | threads, most | with a slope, longest | " +
		"memory slope, median, most | descriptors, most | threads, most |\n|---|---|---|---|---|---|---|---|---|\n")
	parted := false
	for _, u := range all {
		slope, files, threads := "–", "–", "–"
		if u.Sloped > 0 {
			slope = fmt.Sprintf("%.2f, %.2f MB/h", u.Median, u.Steepest)
			files, threads = fmt.Sprintf("%.1f/h", u.MoreFiles), fmt.Sprintf("%.1f/h", u.MoreThreads)
		}
		parted = parted || u.Parts != nil
		fmt.Fprintf(b, "| %s | %d | %.0f MB | %.0f | %.0f | %d, %s | %s | %s | %s |\n", u.Role, u.Processes, u.Resident, u.Descriptors,
			u.Threads, u.Sloped, u.Longest, slope, files, threads)
	}
	if !parted {
		return
	}
	b.WriteString("\n| process | anonymous, most | its slope, median, most | pages of files, most | their slope, median, most | " +
		"these files, most | their slope, median, most |\n|---|---|---|---|---|---|---|\n")
	for _, u := range all {
		if u.Parts == nil {
			continue
		}
		fmt.Fprintf(b, "| %s", u.Role)
		for _, p := range []Part{u.Parts.Anonymous, u.Parts.Files, u.Parts.Mapped} {
			slope := "–"
			if u.Sloped > 0 {
				slope = fmt.Sprintf("%.2f, %.2f MB/h", p.Median, p.Steepest)
			}
			fmt.Fprintf(b, " | %.0f MB | %s", p.Most, slope)
		}
		b.WriteString(" |\n")
	}
}

// delays prints a table of delays; of faults with a column for their kind and the number that was not named.
func delays(b *bytes.Buffer, kind, missed string, rows []*Delays) {
	head := "| from the heal to NORMAL, busy loops | n | median | p99 | most | bound | beyond |\n|---|---|---|---|---|---|---|\n"
	if kind != "" {
		head = "| " + kind + " | busy loops | n | median | p99 | most | bound | beyond | " + missed + " |\n" +
			"|---|---|---|---|---|---|---|---|---|\n"
	}
	b.WriteString("\n" + head)
	sorted := slices.SortedFunc(slices.Values(rows), func(x, y *Delays) int {
		if c := strings.Compare(x.Kind, y.Kind); c != 0 {
			return c
		}
		return x.Loops - y.Loops
	})
	for _, d := range sorted {
		if kind != "" {
			fmt.Fprintf(b, "| %s ", d.Kind)
		}
		fmt.Fprintf(b, "| %d | %d | %s | %s | %s | %s | %d |", d.Loops, len(d.Took), Milliseconds(Quantile(d.Took, 0.5)),
			Milliseconds(Quantile(d.Took, 0.99)), Milliseconds(Quantile(d.Took, 1)), Milliseconds(d.Bound), d.Beyond)
		if kind != "" {
			fmt.Fprintf(b, " %d |", d.Missed)
		}
		b.WriteString("\n")
	}
}

// Milliseconds writes a time for a table; 0 is a dash.
func Milliseconds(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
}

// Cell keeps a text on one line and free of marks, for a table.
func Cell(s string) string {
	return strings.NewReplacer("\n", " ", "*", "", "|", "/", "<", "‹", ">", "›").Replace(s)
}
