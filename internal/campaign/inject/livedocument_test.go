package inject

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

// liveTarget is the share of the flips with an effect that halves are to find while they only note changes.
const liveTarget = 0.99

// meetsTarget reports whether enough of the flips with an effect were found: halves that act must find as many as in the other classes.
func meetsTarget(class string, found, effective int) bool {
	share := promisedCoverage
	if notesOnly(class) {
		share = liveTarget
	}
	return float64(found) >= share*float64(effective)
}

// live writes the section on flips in live data: a table for halves that only note changes, and one for halves that act.
func (r record) live(b *bytes.Buffer) {
	fmt.Fprintf(b, "## Flips in live data\n\nThe paper left data structures out, because silent faults in them need another "+
		"kind of redundancy. Here a half keeps checksums of all memory\nof its machine between two steps, ends when it finds a change, "+
		"and resumes from its copy ([ADR 80](adr/0080-memory-between-steps.md)).\n\nThe campaign flips one bit of that memory in a "+
		"running half under load, watches for %s, and restarts the half. *Values* are numbers, states,\ntimes and buffers; *pointers and "+
		"lengths* lead to them. In the first table the halves only note changes, so that flips show their effects:\nwithout "+
		"effect are those after which the half went on, and neither the prober nor the map noticed anything. This table is the base of "+
		"the\ncoverage. In the second table the halves act, as they do with `checkMemory: true`.\n\n`make campaign-live` repeats it. "+
		"Commit %s, seed %d, begun %s, took %s, on %s; load averages before and after: %s; %s.\n\n", watchFor, r.Commit, r.Seed,
		r.Begun.Format("2006-01-02 15:04 MST"), r.Took, r.Machine, r.Load, r.LoadAfter)
	if broken := r.brokenLive(); len(broken) > 0 {
		fmt.Fprintf(b, "**The run broke a promise: %s.**\n\n", strings.Join(broken, "; "))
	}
	b.WriteString("| halves only note | flips | without effect | of these found | with an effect | of these found | found first by | detect " +
		"median, p99 | not recovered |\n|---|---|---|---|---|---|---|---|---|\n")
	var noted classRecord // both classes
	for _, k := range r.Classes {
		if notesOnly(k.Name) {
			fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %s | %s | %s | %d |\n", k.Name, k.Faults, k.Faults-k.Effective, k.FoundQuiet,
				k.Effective, share(k.Covered, k.Effective), byWhom(k.By), k.Detect, len(k.Unhealed))
			noted.Effective, noted.Covered = noted.Effective+k.Effective, noted.Covered+k.Covered
			noted.Lost, noted.Doubled = noted.Lost+k.Lost, noted.Doubled+k.Doubled
		}
	}
	fmt.Fprintf(b, "\nChecksums, ends of processes and watchdogs together found %s of the flips with an effect, over both classes.",
		share(noted.Covered, noted.Effective))
	if !meetsTarget(liveRefsNoted, noted.Covered, noted.Effective) {
		fmt.Fprintf(b, " **That is below the target of %.0f %%.**", 100*liveTarget)
	}
	b.WriteString("\n\n| halves act | flips | found | missed | without effect, not found | found first by | detect median, p99 | serving " +
		"again median, p99 | not recovered |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, k := range r.Classes {
		if !notesOnly(k.Name) {
			fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %s | %s | %s | %d |\n", k.Name, k.Faults, k.Outcomes[detected],
				k.Outcomes[undetected], k.Outcomes[masked], byWhom(k.By), k.Detect, k.Recover, len(k.Unhealed))
		}
	}
	fmt.Fprintf(b, "\nReports while the halves acted: %d kept, %d replaced by others, %d lost, %d doubled. While they only noted: %d lost, "+
		"%d doubled. A half that\nonly notes goes on with changed memory, such as a sequence number, and may lose reports, so it promises "+
		"nothing.\n\n", r.Reports.Kept, r.Reports.Replaced, r.Reports.Lost,
		r.Reports.Doubled, noted.Lost, noted.Doubled)
	for _, k := range r.Classes {
		k.remarks(b)
	}
}

// notesOnly reports whether the halves of a class only note changes in their memory.
func notesOnly(class string) bool { return class == liveValuesNoted || class == liveRefsNoted }

// brokenLive lists the broken promises of halves that act. Halves that only note changes promise nothing.
func (r record) brokenLive() []string {
	var out []string
	if r.Reports.Lost+r.Reports.Doubled > 0 {
		out = append(out, fmt.Sprintf("%d reports lost, %d doubled", r.Reports.Lost, r.Reports.Doubled))
	}
	for _, k := range r.Classes {
		if notesOnly(k.Name) {
			continue
		}
		if !meetsTarget(k.Name, k.Covered, k.Effective) {
			out = append(out, fmt.Sprintf("%s: found %s", k.Name, share(k.Covered, k.Effective)))
		}
		if len(k.Unhealed) > 0 {
			out = append(out, fmt.Sprintf("%s: %d not recovered", k.Name, len(k.Unhealed)))
		}
	}
	return out
}

func TestLiveDocumentNamesBrokenPromisesOfActingHalvesOnly(t *testing.T) {
	good := func() record {
		r := record{Failed: true, Begun: time.Unix(0, 0).UTC()} // because of halves that only note
		for _, k := range liveKinds {
			c := classRecord{Name: k.name, Faults: 200, Effective: 100, Covered: 100, Missed: []string{"a length"}}
			if k.noted {
				c.Covered, c.Lost, c.Doubled, c.Unhealed = 97, 30, 1, []string{"b"}
			}
			r.Classes = append(r.Classes, c)
		}
		return r
	}
	const broken = "**The run broke a promise: "
	for _, tc := range []struct {
		name   string
		change func(*record)
		want   string
	}{
		{"halves that only note fail", func(*record) {}, ""},
		{"lost", func(r *record) { r.Reports.Lost = 2 }, "2 reports lost, 0 doubled.**"},
		{"doubled", func(r *record) { r.Reports.Doubled = 3 }, "0 reports lost, 3 doubled.**"},
		{"missed", func(r *record) { r.Classes[0].Covered = 98 }, liveValues + ": found 98.00 % (98 of 100; "},
		{"not recovered", func(r *record) { r.Classes[1].Unhealed = []string{"c"} }, liveRefs + ": 1 not recovered.**"},
	} {
		r := good()
		tc.change(&r)
		var b bytes.Buffer
		r.live(&b)
		text := b.String()
		if tc.want == "" && strings.Contains(text, broken) || tc.want != "" && !strings.Contains(text, broken+tc.want) {
			t.Errorf("%s: want %q in\n%s", tc.name, tc.want, text)
		}
		for _, want := range []string{"found 97.00 % (194 of 200; ", "below the target of 99 %", "60 lost, 2 doubled", "missed: a length",
			"not recovered: b"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the document lacks %q:\n%s", tc.name, want, text)
			}
		}
	}
	r := good()
	for i := range r.Classes {
		r.Classes[i].Covered = 100
	}
	var b bytes.Buffer
	if r.live(&b); strings.Contains(b.String(), "target") {
		t.Errorf("all flips were found, but the document mentions the target:\n%s", b.String())
	}
}
