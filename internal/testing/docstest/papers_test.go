package docstest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// paper lists the required rows of docs/papers.md.
type paper struct {
	heading         string
	figures, tables []string
	sections        []string
}

func numbers(last int) []string {
	var out []string
	for i := 1; i <= last; i++ {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

var papers = []paper{
	{
		heading: "## 000, FTGM", figures: numbers(13), tables: numbers(2),
		sections: strings.Fields("2 3 3.1 3.2 4 4.1 4.2 5 5.1 5.2 5.3 5.4"),
	},
	{
		heading: "## 001, LO|FA|MO", figures: numbers(7), tables: strings.Fields("I II III IV V VI VII"),
		sections: strings.Fields("II III III-A III-B III-C III-D III-E IV-A IV-B"),
	},
	{
		heading: "## 002, NewMadeleine", figures: numbers(8),
		sections: strings.Fields("2 3 4 5 5.1 5.2 5.3 6.1 6.2"),
	},
	{
		heading: "## 003, Chaos", figures: numbers(18), tables: numbers(7),
		sections: strings.Fields(`
			1.1 1.2 1.3 1.4 2 2.1 2.2 3 3.1 3.2 3.3 3.3.1 3.3.2 3.3.3 3.3.4 3.3.5 3.4 3.4.1 3.4.2 3.4.3 3.4.4 4.1 4.2
			4.3.1 4.3.2 4.3.3 4.3.4 4.3.5 4.3.6 4.3.7 4.3.8 4.4 4.4.1 4.4.2 4.4.3 4.4.4 4.5 4.5.1 4.5.2 4.5.3 4.5.4 5.1
			5.2 5.2.1.1 5.2.1.2 5.2.1.3 5.2.2 5.2.2.1 5.2.2.2 5.2.2.3 5.2.3 5.2.3.1 5.2.3.2 5.3 5.4 6.1 7.2`),
	},
	{
		heading: "## 004, Hybrid-IBNFT", figures: numbers(15),
		sections: strings.Fields("II-A II-B II-C III IV-A IV-B IV-C IV-D V-A V-B V-C V-D"),
	},
}

// mechanisms are the rows of the mechanism tables that correspond to no single section, figure or table.
var mechanisms = []string{
	"torus of tiles", "service network", "reports through the 3D network", "both dead: inferred", "mutual watchdog", "link sick",
	"link broken", "temperature, power, voltage", "DNP core sick",
	"DNP melt-down", "host memory, peripherals", "host breakdown", "a DNP that survives the host", "systemic response", "Byzantine faults",
	"watchdog for a hung network processor", "adaptive, concurrent self-test", "recovery daemon", "duplicate and lost messages",
	"continuous backup", "fault-injection campaign",
	"sender-based log", "acknowledgements carried on other traffic", "quick acknowledgement time-outs", "duplicates dropped", "several rails",
	"several small messages in one packet",
	"checksum, negotiated", "checksum folded into the copy", "the receiver requests a damaged packet again", "eager; rendezvous",
	"chaotic routing", "global flow control", "reordering, missing packets", "profitable and functional channels", "Express Broadcast Network",
	"error detect propagate", "masks change in an empty network",
	"Network Delay", "selection of a master", "one-to-all data messages", "start-up configuration", "heartbeat on the broadcast path",
	"channel protocol checks", "one-hop and two-hop",
	"concave regions found and closed", "global map", "mapping by delegation", "redundant controllers", "components marked dead stay dead",
	"messages to the individual nodes",
	"repaired and spare nodes", "barriers and eurekas for applications", "checkpoints, roll-back", "fault model", "hardware costs",
	"path states", "switch to the loaded alternate", "alternate path, round-robin", "early signs", "software re-establishment",
	"what failed is issued again", "sequence ids tell",
}

// tableRow is a row of docs/papers.md: of a mechanism (mechanism, section, status, where), or of a figure or table (id,
// shows, status, where).
type tableRow struct {
	line                         int
	first, second, status, where string
}

var (
	cells       = regexp.MustCompile(`(?:[^|\\]|\\.)+`)
	sectionName = regexp.MustCompile(`§([0-9IVX][0-9A-Z.-]*[0-9A-Z]|[0-9IVX])`)
)

// paperRows returns the rows with a status below a heading, up to the next one of its level.
func paperRows(t *testing.T, text, heading string) []tableRow {
	t.Helper()
	start := strings.Index(text, heading+"\n")
	if start < 0 {
		t.Fatalf("docs/papers.md has no %q", heading)
	}
	first := strings.Count(text[:start], "\n") + 1
	part := text[start+len(heading):]
	if end := strings.Index(part, "\n## "); end >= 0 {
		part = part[:end]
	}
	var out []tableRow
	status := false
	for i, line := range strings.Split(part, "\n") {
		c := cells.FindAllString(line, -1)
		for j := range c {
			c[j] = strings.TrimSpace(c[j])
		}
		switch {
		case !strings.HasPrefix(line, "| "):
			status = status && strings.HasPrefix(line, "|-")
		case len(c) == 4 && c[2] == "status":
			status = true
		case status && len(c) != 4:
			t.Errorf("docs/papers.md:%d: %d cells, want 4", first+i, len(c))
		case status:
			out = append(out, tableRow{first + i, c[0], c[1], c[2], c[3]})
		}
	}
	return out
}

// wrong returns the error in a row; "" for none.
func (r tableRow) wrong() string {
	word, why, explained := strings.Cut(r.status, ": ")
	switch {
	case !slices.Contains([]string{"done", "differs", "missing"}, word):
		return fmt.Sprintf("status %q: want done, differs or missing", r.status)
	case word != "done" && (!explained || len(why) < 8):
		return fmt.Sprintf("status %q: want how it differs or why it is missing after a colon", r.status)
	case word != "missing" && r.where == "–":
		return "it is there, but not said where"
	}
	return ""
}

// TestPapersAreAccountedFor: docs/papers.md has a row with a status for every section, figure and table of the five
// papers, and for every mechanism.
func TestPapersAreAccountedFor(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(top, "docs", "papers.md"))
	if err != nil {
		t.Fatal(err)
	}
	var all []tableRow
	for _, p := range papers {
		rows := paperRows(t, string(b), p.heading)
		all = append(all, rows...)
		for _, lack := range p.lacks(rows) {
			t.Errorf("docs/papers.md, %s: no row for %s", p.heading[3:], lack)
		}
	}
	for _, m := range mechanisms {
		if !slices.ContainsFunc(all, func(r tableRow) bool { return strings.HasPrefix(r.first, m) }) {
			t.Errorf("docs/papers.md: no row for the mechanism %q", m)
		}
	}
	for _, r := range all {
		if w := r.wrong(); w != "" {
			t.Errorf("docs/papers.md:%d: %s: %s", r.line, r.first, w)
		}
	}
}

// lacks returns the parts of the paper without a row.
func (p paper) lacks(rows []tableRow) []string {
	have := map[string]bool{}
	for _, r := range rows {
		have[r.first] = true
		for _, m := range sectionName.FindAllStringSubmatch(r.second, -1) {
			have["§"+m[1]] = true
		}
	}
	var out []string
	for prefix, ids := range map[string][]string{"Fig. ": p.figures, "Table ": p.tables, "§": p.sections} {
		for _, id := range ids {
			if !have[prefix+id] {
				out = append(out, prefix+id)
			}
		}
	}
	slices.Sort(out)
	return out
}

// TestMissingPaperRowIsReported: a row that is gone, and one without a reason, is found.
func TestMissingPaperRowIsReported(t *testing.T) {
	const text = "## X\n\n| mechanism | section | status | where |\n|---|---|---|---|\n| a | §2.1, §III-A | done | `b` |\n" +
		"| Fig. 1 | c | missing | – |\n| d | Fig. 9 | maybe | `e` |\n"
	rows := paperRows(t, text, "## X")
	if len(rows) != 3 {
		t.Fatalf("%d rows: want 3: %v", len(rows), rows)
	}
	p := paper{figures: numbers(2), tables: numbers(1), sections: strings.Fields("2.1 2.2 III-A")}
	if got := strings.Join(p.lacks(rows), " "); got != "Fig. 2 Table 1 §2.2" {
		t.Errorf("lacking: %s", got)
	}
	if rows[0].wrong() != "" || rows[1].wrong() == "" || rows[2].wrong() == "" {
		t.Errorf("what is wrong: %q, %q, %q", rows[0].wrong(), rows[1].wrong(), rows[2].wrong())
	}
}
