package inject

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/recovery"
	"github.com/lofamo/lofamo/internal/config"
)

// conditions are what a run's figures hold for.
type conditions struct {
	began  time.Time
	load   string // of the machine when it began
	failed bool
}

// write writes the document.
func (c conditions) write(path string) error { return os.WriteFile(path, c.document(), 0o644) }

func (c conditions) document() []byte {
	var b bytes.Buffer
	kind := "the whole campaign"
	if !*full {
		kind = "the **short form**, as in CI; `make campaign` runs the whole"
	}
	fmt.Fprintf(&b, "# The fault-injection campaign\n\nSeed 000 §5 on our two halves: faults are put in, one at a time, and each is watched by the system itself and by a\nprober that knows only what users know. This file is written by `make campaign`; this run is %s.\n\n", kind)
	fmt.Fprintf(&b, "| | |\n|---|---|\n| seed | %d |\n| commit | %s |\n| begun | %s, took %s |\n| machine | %s |\n| load when it began, ended | %s; %s |\n",
		*seed, command("git", "describe", "--always", "--dirty", "--abbrev=12"), c.began.UTC().Format("2006-01-02 15:04 MST"), time.Since(c.began).Round(time.Second), machine(), c.load, loadavg())
	if c.failed {
		b.WriteString("| **result** | **something was not as it must be: see missed and not recovered below** |\n")
	}
	b.WriteString("\n")
	c.summary(&b)
	c.classes(&b)
	c.table1(&b)
	c.timeline(&b)
	c.apart(&b)
	c.method(&b)
	return b.Bytes()
}

// summary are the figures that were promised.
func (c conditions) summary(b *bytes.Buffer) {
	b.WriteString("## Figures\n\n| figure | here | paper |\n|---|---|---|\n")
	effective, covered, proberOf, strict := 0, 0, 0, 0
	for _, k := range done.classes {
		if !k.apart {
			effective += k.effective
			covered += k.covered
			proberOf += k.proberOf
			strict += k.strict
		}
	}
	fmt.Fprintf(b, "| coverage of effective faults, all classes but live data | %s; strictly, of what the prober noticed itself: %s | strictly 95.6 to 99.3 %% |\n", share(covered, effective), share(strict, proberOf))
	for _, k := range done.classes {
		if k.name == hangs || k.name == crashes {
			paper := "–"
			if k.name == hangs {
				paper = "5 of 286"
			}
			fmt.Fprintf(b, "| %s: not recovered | %d of %d | %s |\n", k.name, len(k.unhealed), k.n, paper)
		}
	}
	fmt.Fprintf(b, "| reports under load through all of it: kept, replaced by others, lost, doubled | %d, %d, %d, %d | – |\n", done.kept, done.replaced, done.lost, done.doubled)
	var serve []time.Duration
	for _, x := range done.courses {
		serve = append(serve, x.Serving)
	}
	fmt.Fprintf(b, "| detected → serving again, one at a time: median, p99 | %s, %s | 765 ms + 900 ms a port |\n\n", ms(quantile(serve, .5)), ms(quantile(serve, .99)))
}

func (c conditions) classes(b *bytes.Buffer) {
	b.WriteString("## Classes of faults\n\n*Effective* is what we found or the prober noticed; hangs and crashes are by their nature. *Coverage* is what we found of these, with the 95 % interval (Wilson);\n*strictly*, of those that the prober noticed itself, which is the paper's ratio. Times are from the injection; those of pages are virtual.\n\n")
	b.WriteString("| class | faults | no impact | masked | found | missed | by | coverage | strictly | detect median, p99 | recover median, p99 | not recovered | seconds |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, k := range done.classes {
		if !k.apart {
			k.row(b)
		}
	}
	b.WriteString("\n")
	for _, k := range done.classes {
		k.remarks(b)
	}
}

func (k *class) row(b *bytes.Buffer) {
	fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d | %s | %s | %s | %s, %s | %s, %s | %d | %.0f |\n", k.name, k.n, k.outcomes[noImpact], k.outcomes[masked], k.outcomes[detected], k.outcomes[undetected],
		k.byWhom(), share(k.covered, k.effective), share(k.strict, k.proberOf), ms(quantile(k.detects, .5)), ms(quantile(k.detects, .99)), ms(quantile(k.recovers, .5)), ms(quantile(k.recovers, .99)), len(k.unhealed), k.took.Seconds())
}

// remarks are a class' notes, and what was not as it must be.
func (k *class) remarks(b *bytes.Buffer) {
	const most = 20
	lines := slices.Clone(k.notes)
	for _, what := range []struct {
		name string
		list []string
	}{{"missed", k.missed}, {"not recovered", k.unhealed}} {
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
	fmt.Fprintf(b, "%s:\n", k.name)
	for _, l := range lines {
		fmt.Fprintf(b, "- %s\n", strings.ReplaceAll(l, "\n", " "))
	}
	b.WriteString("\n")
}

// table1 is the paper's Table 1, with our classes beside its three.
func (c conditions) table1(b *bytes.Buffer) {
	b.WriteString("## By the categories of the paper's Table 1\n\nOurs: shared memory is the register and the backup page and the mailbox' headers, where a fault that is masked or mended has no impact; processes are hangs,\ncrashes and failpoints. The paper's: send_chunk, registers, entire code segment.\n\n")
	b.WriteString("| category | shared memory | processes | live data | paper: send_chunk | paper: registers | paper: code segment |\n|---|---|---|---|---|---|---|\n")
	var total [3]int
	sum := map[category]*[3]int{}
	for _, k := range done.classes {
		col := 0
		switch {
		case k.apart:
			col = 2
		case strings.HasPrefix(k.name, "processes") || k.name == "failpoints":
			col = 1
		}
		for cat, n := range k.cats {
			if sum[cat] == nil {
				sum[cat] = new([3]int)
			}
			sum[cat][col] += n
			total[col] += n
		}
	}
	for _, row := range categories {
		fmt.Fprintf(b, "| %s |", row.name)
		for col := range total {
			n := 0
			if s := sum[row.name]; s != nil {
				n = s[col]
			}
			fmt.Fprintf(b, " %s |", percent(n, total[col]))
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
func (c conditions) timeline(b *bytes.Buffer) {
	periods, err := config.Preset(config.PresetDefault)
	if err != nil {
		return
	}
	bound := recovery.HangBound(periods.TRead, periods.ReadMisses)
	fmt.Fprintf(b, "## The recovery timeline (Figure 10)\n\nOne fault at a time on a cluster under report load, preset default, SIGSTOP and SIGKILL in turn, either half. A hang must be found within %s (`lofamo-agent run` prints it);\nin doubt is one that was found later while the campaign's own process stood still too, for more than a period of looks. Median and p99; from *gone* on, from the moment of detection.\n\n", bound)
	b.WriteString("| | recoveries | injected → detected | within the bound | gone for certain | started | serving | self-test passed |\n|---|---|---|---|---|---|---|---|\n")
	for _, hang := range []bool{true, false} {
		var d, g, s, v, p []time.Duration
		within, doubts := 0, 0
		for _, x := range done.courses {
			if x.x.hang == hang {
				d, g, s, v, p = append(d, x.detect), append(g, x.Gone), append(s, x.Started), append(v, x.Serving), append(p, x.Proven)
				switch ok, doubt := x.inTime(bound, periods.TRead); {
				case ok:
					within++
				case doubt:
					doubts++
				}
			}
		}
		inTime := fmt.Sprint(within)
		if doubts > 0 {
			inTime += fmt.Sprintf(", and %d in doubt", doubts)
		}
		fmt.Fprintf(b, "| %s | %d | %s | %s | %s | %s | %s | %s |\n", map[bool]string{true: "hang", false: "crash"}[hang], len(d), both(d), inTime, both(g), both(s), both(v), both(p))
	}
	b.WriteString("| paper | | 800 µs watchdog | | | ≈ 765 ms, of it ≈ 500 ms reload | + ≈ 900 ms a port | |\n\n")
}

func both(d []time.Duration) string { return ms(quantile(d, .5)) + ", " + ms(quantile(d, .99)) }

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

// apart are the classes that are no part of the coverage.
func (c conditions) apart(b *bytes.Buffer) {
	for _, k := range done.classes {
		if !k.apart {
			continue
		}
		b.WriteString("## Flips in live data\n\nThe paper left data structures out: what is silent in them needs redundancy of another kind. Here one bit of one scalar that can be reached from a running half's machine is\nflipped (counters, states, times, buffers; chosen among all by seed), watched for 1.2 s, and the half is then killed and restarted, as the paper reloads after each run.\n\n")
		b.WriteString("| class | faults | no impact | masked | found | missed | by | coverage | strictly | detect median, p99 | recover median, p99 | not recovered | seconds |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
		k.row(b)
		fmt.Fprintf(b, "\nReports meanwhile: %d lost, %d doubled. Not recovered means that a restart did not heal it: %d.\n\n", k.lost, k.doubled, len(k.unhealed))
	}
}

func (c conditions) method(b *bytes.Buffer) {
	b.WriteString(`## How

- *Register page*: every bit of both pages that has a meaning (words, guards, epochs, doorbells, magic) is flipped, stuck at 0 and stuck at 1 (put back after each store), and pairs of bits
  are flipped, while the real machines of both halves run around the real file in virtual time, with neighbours on six links and a supervisor, and what the node has to say changes twice.
  The prober compares all that the node states with what is true.
- *Backup page*: the same for every bit that counts of both copies of every kind of cell, on a copy at rest; a half then starts from it, and what it goes on from is compared with the truth.
- *Mailbox headers*: every bit of type, relay header and checksum, and pairs of them, through a real mailbox.
- *Processes*: clusters of 2×2×1 nodes and a supervisor, sensors that change ten times a second; SIGSTOP, deadlock and endless loop; SIGKILL, panic and exit; either half, at random moments, one
  at a time on a node and on all nodes at once; daemons are killed and replaced, or stopped for a while, and must not disturb the halves. The prober asks the status socket every 25 ms, for at most
  150 ms, and watches the map; a look during which its own process stood still is not counted. A fault of a daemon is masked when no half was restarted for it.
- *Failpoints*: every send, receive, commit and restart step of halves and daemon drops, alters, doubles, delays, hangs, spins, is killed, panics, exits (build tag lofamo_failpoint; programs as
  delivered have none). What ends no process is found when the map calls a half something else than NORMAL; it is noticed by that, or when nobody answers, or nobody answers in time twice in a row. A
  daemon that ends is found by who started it; one that hangs, when the map misses the half that it has not started again; where both halves live, nobody has any harm, and it is masked.
- *How many*: in the whole campaign 3,000 or more of each class. Live data stays at 900, two nodes of a cluster at a time: each is watched, healed by a restart and waited for, some 2.5 s, and 3,000 would
  be another quarter of an hour.
- *Reports*: what the halves' logs say was kept is compared with what the supervisors' logs say was committed, and how often.

`)
	b.WriteString("`make campaign SEED=n` repeats it with another seed; the order in which real processes are hit is the machine's.\n")
}

func command(name string, args ...string) string {
	b, err := exec.Command(name, args...).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

func loadavg() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(b))[:3], " ")
}

func machine() string {
	model := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for l := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == "model name" {
				model = strings.TrimSpace(v)
				break
			}
		}
	}
	return fmt.Sprintf("%d × %s, Linux %s, %s", runtime.NumCPU(), model, command("uname", "-r"), runtime.Version())
}

func TestDocument(t *testing.T) {
	k := newClass("x", 1)
	k.add(sample{what: "a", applied: true, ours: byGuard, prober: true, detect: 3 * time.Millisecond, category: catMailbox})
	done.mu.Lock()
	before, courses := done.classes, done.courses
	done.classes = []*class{k}
	done.courses = []course{{harms[0], time.Second, 0, recovery.Recovery{Serving: 40 * time.Millisecond}}}
	text := string(conditions{began: time.Now(), load: "1 2 3"}.document())
	done.classes, done.courses = before, courses
	done.mu.Unlock()
	for _, want := range []string{"short form", "| x | 1 | 0 | 0 | 1 | 0 | guard/CRC 1 |", "not recovered: a", "1 2 3", "| hang | 1 | 1000 ms, 1000 ms | 0 |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the document lacks %q:\n%s", want, text)
		}
	}
}
