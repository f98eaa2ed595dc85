package trial

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/golden"
)

var render = flag.Bool("trial.render", false, "print docs/trials.md from the records of its trials")

// TestDocumentIsWhatIsPrinted: docs/trials.md equals the output for the records, so no number in it is written by hand.
// With -trial.render the test writes the page.
func TestDocumentIsWhatIsPrinted(t *testing.T) {
	records, err := ReadRecords(filepath.Join("testdata", "trials.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(records) == 0 {
		t.Fatal("no records: `make trial TRIAL_FLAGS=-record` adds one")
	}
	simulated, err := ReadScore(filepath.Join("testdata", "incidents.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := Document(records, simulated)
	golden.Page(t, "../../../docs/trials.md", want, *render, "go test ./internal/testing/trial -run Document -trial.render")
	records[0].Violations = append(records[0].Violations, "planted")
	if string(Document(records, simulated)) == string(want) {
		t.Error("a violation in a record does not change the page")
	}
	records[0].Unharmed = Unharmed{Supervisors: true, Daemons: true}
	if again := "TRIAL_FLAGS='-unharmed supervisors,daemons'`"; !strings.Contains(string(Document(records, simulated)), again) {
		t.Errorf("no %s on the page of a trial with unharmed processes", again)
	}
	if string(Document(records, &IncidentScore{Missed: 7})) == string(Document(records, &IncidentScore{})) {
		t.Error("a missed incident does not change the page")
	}
}

func TestRecordSurvivesItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.json")
	first := newRecord(Options{Shape: shapes[2], Preset: "relaxed", Seed: 7})
	first.named("kill-host", 4, 2*time.Second, time.Second)
	first.named("kill-host", 4, time.Second/2, time.Second)
	first.missed("kill-host", 4, time.Second)
	first.named("kill-host", 0, time.Second/2, time.Second)
	first.normal(16, time.Second, time.Minute)
	first.Violations = []string{"lost: *policy* | gone"}
	for n := 1; n <= 2; n++ {
		all, err := AppendRecord(path, first)
		if err != nil || len(all) != n {
			t.Fatalf("%d records, %v: want %d", len(all), err, n)
		}
	}
	all, err := ReadRecords(path)
	if err != nil || len(all) != 2 {
		t.Fatalf("%d records, %v: want 2", len(all), err)
	}
	if d := all[1].Faults[0]; len(d.Took) != 2 || d.Beyond != 1 || d.Missed != 1 || d.Loops != 4 || len(all[1].Faults) != 2 {
		t.Errorf("%+v of %d rows: want two delays, one beyond the bound and one missed, in the first of two rows", d, len(all[1].Faults))
	}
	if string(Document(all, nil)) != string(Document([]*Record{first, first}, nil)) {
		t.Error("the page of read records differs from that of the written ones")
	}
	if missing, err := ReadRecords(path + ".none"); err != nil || missing != nil {
		t.Errorf("a missing file: %v, %v", missing, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadRecords(path); err == nil {
		t.Error("a damaged file has no error")
	}
}
