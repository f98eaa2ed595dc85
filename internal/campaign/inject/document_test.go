package inject

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/testing/golden"
)

// conditions are the conditions under which a run's figures hold.
type conditions struct {
	began  time.Time
	load   string // of the machine, at the beginning
	failed bool
}

// write writes the document and, if recordPath is set, the record behind it.
func (c conditions) write(path, recordPath string) error {
	r := c.record()
	if recordPath != "" {
		if before, err := readRecord(recordPath); err == nil {
			r.Code, r.Live, r.Stream = before.Code, before.Live, before.Stream
		}
		if err := r.write(recordPath); err != nil {
			return err
		}
	}
	return os.WriteFile(path, r.document(), 0o644)
}

func (r record) document() []byte {
	var b bytes.Buffer
	kind := "the whole campaign"
	if !r.Full {
		kind = "the **short form**, as in CI; `make campaign` runs the whole campaign"
	}
	fmt.Fprintf(&b, "# The fault-injection campaign\n\nThis campaign repeats seed 000 §5 on our two halves. It injects faults one "+
		"at a time. The system itself and a prober, which sees only what\nusers see, watch each fault. `make campaign` prints this "+
		"page from the counts in `internal/campaign/inject/%s`; this run is %s.\n\n", recordFile, kind)
	fmt.Fprintf(&b, "| | |\n|---|---|\n| seed | %d |\n| commit | %s |\n| begun | %s, took %s |\n| machine | %s |\n| load when it "+
		"began, ended | %s; %s |\n",
		r.Seed, r.Commit, r.Begun.Format("2006-01-02 15:04 MST"), r.Took, r.Machine, r.Load, r.LoadAfter)
	if r.Failed {
		b.WriteString("| **result** | **the run broke a promise: see lost, missed and not recovered below** |\n")
	}
	if r.TakenOver {
		b.WriteString("| record | taken from the printed page of this run, which is older than records: times are as printed |\n")
	}
	if r.FoundLater > 0 {
		fmt.Fprintf(&b, "| recount | a later recount of the logs found %d of the lost reports in the store |\n", r.FoundLater)
	}
	b.WriteString("\n")
	r.summary(&b)
	r.byMechanism(&b)
	r.classes(&b)
	r.table1(&b)
	r.timeline(&b)
	if r.Live != nil {
		r.Live.live(&b)
	}
	r.apart(&b)
	if r.Code != nil {
		r.Code.code(&b)
	}
	if r.Stream != nil {
		r.Stream.stream(&b)
	}
	method(&b)
	return b.Bytes()
}

// summary writes the promised figures.
func (r record) summary(b *bytes.Buffer) {
	b.WriteString("## Figures\n\n| figure | here | paper |\n|---|---|---|\n")
	effective, covered, proberOf, strict := 0, 0, 0, 0
	for _, k := range r.Classes {
		if !k.Apart {
			effective += k.Effective
			covered += k.Covered
			proberOf += k.ProberOf
			strict += k.Strict
		}
	}
	fmt.Fprintf(b, "| coverage of effective faults by all mechanisms, all classes but live data | %s; strictly, of those that the "+
		"prober noticed itself: %s | no counterpart: see [below](#detectors-compared-with-ftgm) "+
		"|\n", share(covered, effective), share(strict, proberOf))
	for _, k := range r.Classes {
		if k.Name == hangs || k.Name == crashes {
			paper := "–"
			if k.Name == hangs {
				paper = "5 of 286"
			}
			fmt.Fprintf(b, "| %s: not recovered | %d of %d | %s |\n", k.Name, len(k.Unhealed), k.Faults, paper)
		}
	}
	fmt.Fprintf(b, "| reports under load during the campaign: kept, replaced by others, lost, doubled | %d, %d, %d, %d | – |\n",
		r.Reports.Kept, r.Reports.Replaced, r.Reports.Lost, r.Reports.Doubled)
	fmt.Fprintf(b, "| detected → serving again, one at a time: median, p99 | %s | 765 ms + 900 ms a port |\n\n", r.Serving)
}

// mechanism is a group of detectors.
type mechanism struct {
	name string
	by   []detector // nil: none found the fault
	note string
}

// mechanisms groups the detectors as the paper would count them.
var mechanisms = []mechanism{
	{"self-test", []detector{bySelfTest}, "FTGM's 95.6 to 99.3 % are of this mechanism"},
	{"watchdog", []detector{byWatchdog}, "FTGM's watchdog timer finds its hangs"},
	{"checksums and guards", []detector{byGuard, byFile}, "FTGM has none; includes an owner's check of its own words"},
	{"death of a process", []detector{byExit}, "FTGM leaves crashes of the host out"},
	{"peers", []detector{byPeer}, "neighbours and supervisors; FTGM has none"},
}

// byMechanism lists by mechanism how the effective faults were detected, since FTGM's coverage is that of its self-test
// alone.
func (r record) byMechanism(b *bytes.Buffer) {
	b.WriteString("### Detectors compared with FTGM\n\nFTGM's failure coverage of 95.6 to 99.3 % is the share of the failures " +
		"noticed by an application that its *self-test* found; a watchdog finds its\nhangs, and crashes of the host are left out. " +
		"[Flips in code](#flips-in-code) gives our ratio. Mechanisms that FTGM lacks find most faults earlier.\nWe have not " +
		"measured how many of these the self-test alone would have found. This table separates the mechanisms.\n\n")
	b.WriteString("| found first by | all classes but live data | of the effective | compared with FTGM |\n|---|---|---|---|\n")
	effective, missed := 0, 0
	found := map[detector]int{}
	for _, k := range r.Classes {
		if k.Apart {
			continue
		}
		effective += k.Effective
		missed += k.Outcomes[undetected]
		for d, n := range k.By {
			found[d] += n
		}
	}
	for _, m := range append(mechanisms, mechanism{name: "none"}) {
		n := 0
		for _, d := range m.by {
			n += found[d]
		}
		if m.by == nil {
			n = missed
		}
		fmt.Fprintf(b, "| %s | %d | %s | %s |\n", m.name, n, part(n, effective), m.note)
	}
	b.WriteString("\n")
}

// part formats the share of n, without an interval.
func part(n, of int) string {
	if of == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(n)/float64(of))
}

func (r record) classes(b *bytes.Buffer) {
	b.WriteString("## Classes of faults\n\n*Effective* are the faults that we found or the prober noticed, and all hangs and " +
		"crashes. *Coverage* is the share of effective faults that we\nfound, with the 95 % interval (Wilson); *strictly*, of " +
		"those that the prober noticed itself. Times count from the injection; those of pages are\nvirtual.\n\n")
	b.WriteString("| class | faults | no impact | masked | found | missed | by | coverage | strictly | detect median, p99 | " +
		"recover median, p99 | not recovered | seconds |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, k := range r.Classes {
		if !k.Apart {
			k.row(b)
		}
	}
	b.WriteString("\n")
	for _, k := range r.Classes {
		if !k.Apart {
			k.remarks(b)
		}
	}
}

func (k classRecord) row(b *bytes.Buffer) {
	fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d | %s | %s | %s | %s | %s | %d | %.0f |\n", k.Name, k.Faults, k.Outcomes[noImpact],
		k.Outcomes[masked], k.Outcomes[detected], k.Outcomes[undetected],
		byWhom(k.By), share(k.Covered, k.Effective), share(k.Strict, k.ProberOf), k.Detect, k.Recover, len(k.Unhealed), k.Took.Seconds())
}

// remarks writes a class' notes and failures.
func (k classRecord) remarks(b *bytes.Buffer) {
	const most = 20
	lines := slices.Clone(k.Notes)
	for _, what := range []struct {
		name string
		list []string
	}{{"missed", k.Missed}, {"not recovered", k.Unhealed}} {
		for i, s := range what.list {
			if i == most {
				lines = append(lines, fmt.Sprintf("%s: %d more", what.name, len(what.list)-most))
				break
			}
			lines = append(lines, what.name+": "+s)
		}
	}
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(b, "%s:\n", k.Name)
	for _, l := range lines {
		fmt.Fprintf(b, "- %s\n", strings.ReplaceAll(l, "\n", " "))
	}
	b.WriteString("\n")
}

// table1 is the paper's Table 1, with our classes beside its three.
func (r record) table1(b *bytes.Buffer) {
	b.WriteString("## By the categories of the paper's Table 1\n\nIn our columns, *shared memory* is the register page, the backup " +
		"page and the mailbox headers, where a masked or repaired fault has no impact;\n*processes* are hangs, crashes and " +
		"failpoints; *live data* are the flips below that halves only note. The paper's columns are\nsend_chunk, registers and the " +
		"entire code segment. A half that ended and was back before the prober's next look is no impact here. The tables below\ncount such a " +
		"flip among those with an effect.\n\n")
	b.WriteString("| category | shared memory | processes | live data | paper: send_chunk | paper: registers | paper: code segment " +
		"|\n|---|---|---|---|---|---|---|\n")
	counts := []map[category]int{r.Categories[columnMemory], r.Categories[columnProcesses], r.Categories[columnLive]}
	if r.Live != nil {
		counts[2] = map[category]int{}
		for _, column := range []string{liveValuesNoted, liveRefsNoted} {
			for c, n := range r.Live.Categories[column] {
				counts[2][c] += n
			}
		}
	}
	total := make([]int, len(counts))
	for i := range counts {
		for _, n := range counts[i] {
			total[i] += n
		}
	}
	for _, row := range categories {
		fmt.Fprintf(b, "| %s |", row.name)
		for i := range counts {
			fmt.Fprintf(b, " %s |", percent(counts[i][row.name], total[i]))
		}
		fmt.Fprintf(b, " %s | %s | %s |\n", row.paper[0], row.paper[1], row.paper[2])
	}
	fmt.Fprintf(b, "| Total | %d | %d | %d | 1056 | 192 | 1430 |\n\n", total[0], total[1], total[2])
}

func percent(n, of int) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%.1f %%)", n, 100*float64(n)/float64(of))
}

// timeline is Figure 10.
func (r record) timeline(b *bytes.Buffer) {
	fmt.Fprintf(b, "## The recovery timeline (Figure 10)\n\nOne fault at a time on a cluster under report load, preset default, "+
		"SIGSTOP and SIGKILL in turn, either half. The daemon must find a hang within\n%s (`lofamo-agent run` prints this bound). "+
		"A later detection is *in doubt* if the campaign's own process also stood still, for more than one\npolling period. "+
		"Median and p99; the columns from *gone* on count from the detection.\n\n", r.HangBound)
	b.WriteString("| | recoveries | injected → detected | within the bound | gone for certain | started | serving | self-test " +
		"passed |\n|---|---|---|---|---|---|---|---|\n")
	for _, row := range r.Timeline {
		inTime := fmt.Sprint(row.Within)
		if row.Doubts > 0 {
			inTime += fmt.Sprintf(", and %d in doubt", row.Doubts)
		}
		fmt.Fprintf(b, "| %s | %d | %s | %s | %s | %s | %s | %s |\n", map[bool]string{true: "hang", false: "crash"}[row.Hang],
			row.Recoveries, row.Detect, inTime, row.Gone, row.Started, row.Serving, row.Proven)
	}
	b.WriteString("| paper | | 800 µs watchdog | | | ≈ 765 ms, of it ≈ 500 ms reload | + ≈ 900 ms a port | |\n\n")
}

func ms(d time.Duration) string {
	switch {
	case d == 0:
		return "–"
	case d < time.Millisecond:
		return fmt.Sprintf("%.0f µs", float64(d)/1e3)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.0f ms", float64(d)/1e6)
}

// apart writes the classes that do not count for the coverage: live data, as it was before halves had checksums of it.
func (r record) apart(b *bytes.Buffer) {
	for _, k := range r.Classes {
		if !k.Apart {
			continue
		}
		fmt.Fprintf(b, "## Flips in live data before halves kept checksums\n\nCommit %s, in values alone. Four of seven missed flips hit "+
			"the half's ledger, so that it reported something else, or\nsent digests that supervisors refused. No code compared that memory "+
			"with anything.\n\n", r.Commit)
		b.WriteString("| class | faults | no impact | masked | found | missed | by | coverage | strictly | detect median, p99 | " +
			"recover median, p99 | not recovered | seconds |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
		k.row(b)
		fmt.Fprintf(b, "\nReports meanwhile: %d lost, %d doubled. Not recovered, even by a restart: %d.\n\n", k.Lost,
			k.Doubled, len(k.Unhealed))
		k.remarks(b)
	}
}

// codeColumns are the classes of flips in code, with the columns of the paper's Table 1 beside them.
var codeColumns = []struct {
	class, title string
	paper        int // index in the paper's columns
	total        string
}{{codeSend, "paper: send_chunk", 0, "1056"}, {codeActive, "paper: entire code segment", 2, "1430"}}

// code writes the flips in code, which are the paper's main experiment.
func (r record) code(b *bytes.Buffer) {
	fmt.Fprintf(b, "## Flips in code\n\nThe paper's main experiment. The campaign flips one bit in the machine code of a running "+
		"half, watches for %s, and restarts the half.\n`make campaign-code` repeats it. Commit %s, seed %d, begun %s, took %s, on %s; "+
		"load averages before and after: %s; %s.\n\n",
		watchFor, r.Commit, r.Seed, r.Begun.Format("2006-01-02 15:04 MST"), r.Took, r.Machine, r.Load, r.LoadAfter)
	if r.Failed {
		b.WriteString("**The run broke a promise: see lost and not recovered below.**\n\n")
	}
	b.WriteString("| class | faults | no impact | masked | found | missed | by | coverage | strictly | detect median, p99 | " +
		"recover median, p99 | not recovered | seconds |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, k := range r.Classes {
		k.row(b)
	}
	b.WriteString("\n| found first by | ")
	var total []int
	for _, k := range r.Classes {
		fmt.Fprintf(b, "%s | of the effective | ", k.Name)
	}
	fmt.Fprintf(b, "\n|---|%s\n", strings.Repeat("---|---|", len(r.Classes)))
	for _, m := range append(mechanisms, mechanism{name: "none"}) {
		fmt.Fprintf(b, "| %s |", m.name)
		for _, k := range r.Classes {
			n := 0
			for _, d := range m.by {
				n += k.By[d]
			}
			if m.by == nil {
				n = k.Outcomes[undetected]
			}
			fmt.Fprintf(b, " %d | %s |", n, part(n, k.Effective))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for _, k := range r.Classes {
		left := k.Effective - k.By[byWatchdog] - k.By[byExit]
		fmt.Fprintf(b, "- %s: the self-test found %d of %d flips with an effect, and %d of the %d (%s) that neither ended a process "+
			"nor hung it.\n", k.Name, k.By[bySelfTest], k.Effective, k.By[bySelfTest], left, part(k.By[bySelfTest], left))
	}
	b.WriteString("\nThe last share is FTGM's failure coverage, which leaves out crashes and hangs: 99.3 % for its send_chunk, 95.6 % for " +
		"its entire code segment.\n")
	b.WriteString("\n| category |")
	for _, c := range codeColumns {
		n := 0
		for _, count := range r.Categories[c.class] {
			n += count
		}
		total = append(total, n)
		fmt.Fprintf(b, " %s | %s |", c.class, c.title)
	}
	fmt.Fprintf(b, "\n|---|%s\n", strings.Repeat("---|---|", len(codeColumns)))
	for _, row := range categories {
		fmt.Fprintf(b, "| %s |", row.name)
		for i, c := range codeColumns {
			fmt.Fprintf(b, " %s | %s |", percent(r.Categories[c.class][row.name], total[i]), row.paper[c.paper])
		}
		b.WriteString("\n")
	}
	b.WriteString("| Total |")
	for i, c := range codeColumns {
		fmt.Fprintf(b, " %d | %s |", total[i], c.total)
	}
	fmt.Fprintf(b, "\n\nReports meanwhile: %d kept, %d replaced by others, %d lost, %d doubled.\n\n", r.Reports.Kept, r.Reports.Replaced,
		r.Reports.Lost, r.Reports.Doubled)
	for _, k := range r.Classes {
		k.remarks(b)
	}
}

func method(b *bytes.Buffer) {
	b.WriteString(`## Method

- *Register page*: the campaign flips every meaningful bit of both pages (words, guards, epochs, doorbells, magic), holds it at 0 and at 1
  (again after each store), and flips pairs of bits. Meanwhile the real machines of both halves run on the real file in virtual time, with
  neighbours on six links and a supervisor, and the state that the node has to report changes twice. The prober compares the node's
  statements with the truth.
- *Backup page*: the same for every meaningful bit of both copies of every kind of cell, in a copy at rest; then a half starts from the
  copy, and the prober compares the state that it resumes with the truth.
- *Mailbox headers*: every bit of type, relay header and checksum, and pairs of these bits, through a real mailbox.
- *Processes*: clusters of 2×2×1 nodes and a supervisor, with sensors that change ten times a second. Hangs are SIGSTOP, deadlock and
  endless loop; crashes are SIGKILL, panic and exit. They hit either half, at random moments, one at a time on a node and on all nodes at
  once. Daemons are killed and replaced, or stopped for a while, and must not disturb the halves. The prober polls the status socket every
  25 ms, for at most 150 ms, and watches the map; a poll during which its own process stood still does not count. A fault of a daemon is
  masked if no half restarted.
- *Failpoints*: every send, receive, commit and restart step of halves and daemon drops, alters, doubles, delays, hangs, spins, is killed,
  panics or exits (build tag lofamo_failpoint; delivered programs have none). A fault that ends no process counts as found when the map
  shows a half in a state other than NORMAL. The prober notices it by that state, by a missing answer, or by two late answers in a row.
  The process that started a daemon finds its end; the map finds a hung daemon by the half that it has not restarted. If both halves live,
  the fault is masked.
- *Flips in code*: through /proc/PID/mem, in a page that the kernel then gives to this process alone. The routine that sends frames is
  flipped bit by bit, as the paper's send_chunk, in the DNP half. The lines that halves run are those that a half built with Go's counters
  has run after ten seconds of load: of this project's packages, without libraries and the Go runtime. The prober is the paper's
  application: it asks for the status, and expects a report within the 1.2 s, where the load makes four. It sends no frames of its own,
  so a link that the map names counts as a failure of sending, found by peers. If only the prober has noticed the flip by then, the
  campaign waits for the map for 10 s more. Only reports that a half made after the flip count. The run above is older, and also counted a
  report that was on its way at the flip, which may hide a failure from the prober.
- *Flips in live data*: one bit of all memory that is reachable from the machine of a half, while no step is under way; but for the bytes of
  texts, the insides of maps, and memory with locks of its own. The prober is that of flips in code; it does not see a lost report, so the
  page counts these apart. A flip during a step is not tried: steps take few hundredths of the time, and the checksums do not cover them.
  While halves only note, three of four flips hit pointers and lengths, because a flip in a value has an effect less often.
- *Numbers*: the whole campaign has 3,000 or more of each class. Flips in live data and code take some 2.5 s each to watch and to heal by a
  restart, two nodes of a cluster at a time, so there are fewer.
- *Reports*: the campaign compares the reports kept in the halves' logs with the reports committed in the supervisors' logs, and counts
  copies.

`)
	b.WriteString("`make campaign SEED=n` repeats the campaign with another seed; the order of faults in real processes depends on " +
		"the machine.\n")
}

func TestDocumentShowsEveryClass(t *testing.T) {
	k := newClass("x", 1)
	k.add(sample{what: "a", applied: true, ours: byGuard, prober: true, detect: 3 * time.Millisecond, category: catMailbox})
	done.mu.Lock()
	before, courses := done.classes, done.courses
	done.classes = []*class{k}
	done.courses = []course{{harms[0], time.Second, 0, halfcore.Recovery{Serving: 40 * time.Millisecond}}}
	r := conditions{began: time.Now(), load: "1 2 3", failed: true}.record()
	file := filepath.Join(t.TempDir(), "record.json")
	if err := r.write(file); err != nil {
		t.Fatal(err)
	}
	again, err := readRecord(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(r.document())
	if kept := string(again.document()); kept != text {
		t.Errorf("the document of the kept record differs:\n%s\nfrom\n%s", kept, text)
	}
	done.classes, done.courses = before, courses
	done.mu.Unlock()
	for _, want := range []string{"short form", "| x | 1 | 0 | 0 | 1 | 0 | guard/CRC 1 |", "not recovered: a", "1 2 3",
		"| hang | 1 | 1000 ms, 1000 ms | 0 |", "| **result** |", "| checksums and guards | 1 | 100.00 % |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the document lacks %q:\n%s", want, text)
		}
	}
}

// TestDocumentIsWhatIsPrinted: docs/campaign.md equals the output for the record of its run, so no number or sentence
// in it is written by hand. With -campaign.render the test writes the file.
func TestDocumentIsWhatIsPrinted(t *testing.T) {
	r, err := readRecord(recordFile)
	if err != nil {
		t.Fatal(err)
	}
	want := r.document()
	golden.Page(t, "../../../docs/campaign.md", want, *render, "go test -run '^TestDocument' ./internal/campaign/inject -campaign.render")
	for _, line := range []string{"\nWritten by hand.\n", "| lost | 0 |\n"} {
		if golden.FirstDifference(string(want)+line, string(want)) == "" {
			t.Errorf("the line %q beside what is printed is not noticed", line)
		}
	}
}
