package compare

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Page prints docs/compare.md.
func (r Run) Page() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Death detection beside other systems\n")
	line("`make compare` starts each system on the same machine, kills members at random times and prints this page from\n" +
		"`bench/compare/testdata/compare.json`. A test refuses any other text. The record keeps the cells that a run does not measure " +
		"again.\nSo the hours of the whole comparison can be spent in pieces: `make compare COMPARE=\"-missing -time 25m\"` measures " +
		"absent cells only.\n")
	if r.Short {
		line("This run is the **short form**: few kills, one size and one load. `make compare` runs the whole form.\n")
	}
	r.conditions(line)
	r.results(line)
	r.absent(line)
	r.plots(line)
	r.failures(line)
	r.systems(line)
	method(line)
	return b.String()
}

type printer func(format string, args ...any)

func (r Run) conditions(line printer) {
	line("| | program | begun | took | load averages at the beginning; end | other work on the machine | kills asked | limit for a kill | " +
		"costs over | seed | order | machine |\n|---|---|---|---|---|---|---|---|---|---|---|---|")
	for i, p := range r.Pieces {
		if !slices.ContainsFunc(r.Cells, func(c Cell) bool { return c.Piece == i }) {
			continue // later pieces have measured all of it again
		}
		line("| %d | `%s` | %s | %s | %s; %s | %s | %d | %s | %s | %d | %s | %s |", i+1, p.Commit, p.Begun.UTC().Format("2006-01-02 15:04 MST"),
			p.Took.Round(time.Second), p.LoadFrom, p.LoadTo, inTable(p.Beside), p.Kills, p.Limit, p.Steady, p.Seed, inTable(p.Lanes),
			inTable(p.Machine))
	}
	line("\nIsolation: %s.", r.Namespace)
}

func (r Run) results(line printer) {
	line("\n## Results\n")
	line("Times are in ms from just before SIGKILL: median [95 %% bootstrap interval], p99. With fewer than %d kills, the p99 is "+
		"the maximum.\nWith fewer than %d, there is no interval. A missed kill counts as longer than the limit.\n"+
		"*First*: the first surviving observer knows. *All*: the last surviving observer knows. *Missed*: kills that "+
		"not all observers knew\nwithin the limit. *False deaths*: a living member was declared dead, by one observer or more. CPU, "+
		"bytes and memory include all\nprocesses of the system. CPU and bytes were measured without a kill, under the load.\n",
		leastForP99, leastForInterval)
	line("| load | members | system | measured | kills | first | all | missed | false deaths | CPU, %% of a core | bytes/s a member | MB a " +
		"member |\n|---|---|---|---|---|---|---|---|---|---|---|---|")
	for _, c := range r.sorted() {
		f, _ := times(c.Kills, first)
		a, missed := times(c.Kills, all)
		falsely := fmt.Sprintf("%d in %s", c.False, c.Observed.Round(time.Second))
		name := c.System
		if c.Failure != "" {
			name += " (**broke off**)"
		}
		p := r.Pieces[c.Piece]
		line("| %s | %d | %s | %s `%s` | %d | %s | %s | %d | %s | %s | %s | %s |", c.Load, c.Members, inTable(name),
			p.Begun.UTC().Format(time.DateOnly), p.Commit, len(c.Kills), spread(f), spread(a), missed, falsely,
			figure("%.1f", 100*c.CPU), figure("%.0f", c.Bytes), figure("%.1f", c.Memory/1e6))
	}
}

// absent lists the cells of the plan that no piece has measured.
func (r Run) absent(line printer) {
	if r.Short {
		return
	}
	var rows []string
	lacking := 0
	for _, at := range Plan() {
		var systems []string
		for _, s := range r.Systems {
			if !r.Has(s.Name, at) {
				systems = append(systems, s.Name)
			}
		}
		lacking += len(systems)
		switch len(systems) {
		case 0:
		case len(r.Systems):
			rows = append(rows, fmt.Sprintf("- %s: all systems", at))
		default:
			rows = append(rows, fmt.Sprintf("- %s: %s", at, strings.Join(systems, "; ")))
		}
	}
	if lacking > 0 {
		line("\n### Not measured\n\n%d of the plan's %d cells have not been measured yet:\n", lacking, len(Plan())*len(r.Systems))
		line("%s", strings.Join(rows, "\n"))
	}
}

// inTable returns text for a cell of a table: LO|FA|MO's own name has bars.
func inTable(s string) string { return strings.ReplaceAll(oneLine(s), "|", `\|`) }

// figure prints a measured value, "–" for none.
func figure(format string, v float64) string {
	if v == 0 {
		return "–"
	}
	return fmt.Sprintf(format, v)
}

func spread(ms []float64) string {
	s := SpreadOf(ms)
	if s.N == 0 {
		return "–"
	}
	interval := "–"
	if s.Interval {
		interval = millis(s.Low) + ", " + millis(s.High)
	}
	return fmt.Sprintf("%s [%s], %s", millis(s.Median), interval, millis(s.P99))
}

// millis prints a time; an infinite one exceeds the limit.
func millis(ms float64) string {
	if math.IsInf(ms, 1) {
		return "> limit"
	}
	return fmt.Sprintf("%.0f", ms)
}

// The plots' axis is logarithmic, from 10 ms to 100 s.
const (
	axisFrom, axisDecades = 10.0, 4
	decade                = 15 // columns
)

func (r Run) plots(line printer) {
	line("\n## Time until all know\n")
	line("Logarithmic axis. `o` is the median, `=` its 95 %% interval, `9` the p99. A time beyond the limit is at the right end.\n")
	var at Cell
	open := false
	for i, c := range r.sorted() {
		if i == 0 || c.Load != at.Load || c.Members != at.Members {
			if open {
				line("```\n")
			}
			at, open = c, true
			line("%s, %d members:\n\n```text", c.Load, c.Members)
			line("%-18s %s", "", axis())
		}
		ms, _ := times(c.Kills, all)
		line("%-18s %s", c.System, bar(SpreadOf(ms)))
	}
	if open {
		line("```")
	}
}

// axis labels the decades.
func axis() string {
	var b strings.Builder
	for _, label := range []string{"10 ms", "100 ms", "1 s", "10 s", "100 s"} {
		fmt.Fprintf(&b, "|%-*s", decade-1, label)
	}
	return strings.TrimRight(b.String(), " ")
}

// column returns the place of a time on the axis; times outside are at its ends.
func column(ms float64) int {
	return int(min(math.Round(decade*math.Log10(max(ms, axisFrom)/axisFrom)), axisDecades*decade))
}

// bar draws one row.
func bar(s Spread) string {
	if s.N == 0 {
		return "no kill"
	}
	row := []byte(strings.Repeat(" ", axisDecades*decade+1))
	for c := column(s.Low); s.Interval && c <= column(s.High); c++ {
		row[c] = '='
	}
	row[column(s.P99)] = '9'
	row[column(s.Median)] = 'o'
	return strings.TrimRight(string(row), " ")
}

// failures lists everything that did not run or broke off.
func (r Run) failures(line printer) {
	var rows []string
	for _, c := range r.sorted() {
		if c.Failure != "" {
			rows = append(rows, fmt.Sprintf("%s, %d members, %s, after %d kills: %s", c.System, c.Members, c.Load, len(c.Kills),
				oneLine(c.Failure)))
		}
	}
	for _, l := range r.LeftOut {
		rows = append(rows, "not run: "+oneLine(l))
	}
	if len(rows) == 0 {
		return
	}
	line("\n## Failures\n")
	for _, row := range rows {
		line("- %s", row)
	}
}

func (r Run) systems(line printer) {
	line("\n## Systems\n")
	line("| system | version | settings | processes | observers |\n|---|---|---|---|---|")
	for _, s := range r.Systems {
		line("| %s | %s | %s | %s | %s |", inTable(s.Name), inTable(r.versions(s)), inTable(s.Settings), inTable(s.Members), inTable(s.Observer))
	}
	seen := map[string]bool{}
	for _, c := range r.sorted() {
		if note := fmt.Sprintf("%s, %d members: %s.", c.System, c.Members, c.Note); c.Note != "" && !seen[note] {
			if len(seen) == 0 {
				line("")
			}
			seen[note] = true
			line("- %s", note)
		}
	}
}

// versions lists the versions of a system that were measured, the oldest first.
func (r Run) versions(s System) string {
	var out []string
	for i := range r.Pieces {
		for _, c := range r.Cells {
			if c.Piece == i && c.System == s.Name && !slices.Contains(out, c.Version) {
				out = append(out, c.Version)
			}
		}
	}
	if len(out) == 0 {
		return s.Version
	}
	return strings.Join(out, ", ")
}

func method(line printer) {
	line("\n## Method\n")
	line(`- A cell is one system, one size, one load. It starts all members, waits until every observer knows every member alive, and applies
  the load. Then it measures the costs for a while and kills.
- A member has a session of its own. A kill sends SIGKILL to all processes of that session, at a random moment. The machine's kernel
  lives, so peers may get a refused connection. Servers and control planes are never killed.
- The next kill comes when all surviving observers know the last one, or at the limit. The cell then starts the member again and waits
  until all observers know it alive. Every member is killed once before any is killed again. A member that is falsely held dead is killed
  later, when all hold it alive. Kubernetes' kills of a round overlap, within 5 s, because one takes up to a minute.
- All times are CLOCK_MONOTONIC of this machine. Gossip members stamp their event in their own process. Watches are stamped in the
  process of the run at receipt.
- Of ours, a node is dead when it is FAILED, and alive again when it is NORMAL or SICK. UNKNOWN is neither. A half that is FAILED in a
  living node counts as a false death, except in the first 10 s after a restart.
- Ours runs at the preset that ` + "`lofamoctl up`" + ` chooses, noted above. On two cores, 64 members at the preset default did not all
  become NORMAL within 4 minutes, and 27 members did not always. Cells with these sizes and that note broke off for this reason.
- Busy loops have the normal priority, each in a session of its own, as each member. Our halves run in the real-time class, as packaged.
- Loss drops packets at the input of the loopback interface, for every connection of the cell, watches included.
- Bytes are those of the loopback interface of the cell's namespace, headers included, with the traffic of watches. CPU is user and
  system time of /proc/PID/stat. Memory is the resident set, so it counts shared pages in each process. The run's own process, which holds
  the watches, does not count.
- The systems promise different things. Ours also distinguishes the halves of a node, its links and its sensors. Consul and Kubernetes
  keep the state in a replicated store, as ours does; memberlist and serf do not.`)
}
