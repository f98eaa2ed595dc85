package deaths

import (
	"flag"
	"path/filepath"
	"testing"

	"github.com/lofamo/lofamo/internal/testing/golden"
)

var render = flag.Bool("deaths.render", false, "print docs/deaths.md from the record")

// TestDocumentIsWhatIsPrinted: docs/deaths.md equals the output for the record, so no number in it is written by hand. With
// -deaths.render the test writes the page.
func TestDocumentIsWhatIsPrinted(t *testing.T) {
	lines, err := Read(filepath.Join("testdata", "deaths.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) == 0 {
		t.Fatal("no record: `make vm-campaign CAMPAIGN_FLAGS=-record` makes one")
	}
	want := Document(lines)
	golden.Page(t, "../../../docs/deaths.md", want, *render, "go test ./internal/testing/deaths -run Document -deaths.render")
}
