package webhook

import (
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/lofamo/lofamo/internal/executor"
)

var (
	refusalSentence = regexp.MustCompile(`(?s)Without such a body, (.*?)\s+mean that nothing happened, and (\d+) means \*later\*`)
	statusRange     = regexp.MustCompile(`(\d{3})(?:\s+to\s+(\d{3}))?`)
)

// TestPageListsStatusCodesOfRefusals: docs/webhooks.md lists the status codes that mean, without an answer of the contract, that nothing
// happened, and the one that means later. All others leave the outcome open; for a receiver without the contract, 2xx is success.
func TestPageListsStatusCodesOfRefusals(t *testing.T) {
	b, err := os.ReadFile("../../../docs/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	m := refusalSentence.FindSubmatch(b)
	if m == nil {
		t.Fatalf("docs/webhooks.md: no sentence %s", refusalSentence)
	}
	var listed []int
	for _, r := range statusRange.FindAllSubmatch(m[1], -1) {
		from, _ := strconv.Atoi(string(r[1]))
		to := from
		if len(r[2]) > 0 {
			to, _ = strconv.Atoi(string(r[2]))
		}
		for s := from; s <= to; s++ {
			listed = append(listed, s)
		}
	}
	later, _ := strconv.Atoi(string(m[2]))
	for s := 200; s < 600; s++ {
		for _, contract := range []bool{true, false} {
			want := verdictGarbled
			switch {
			case !contract && s < 300:
				want = verdictDone
			case s == later:
				want = verdictLater
			case slices.Contains(listed, s):
				want = verdictRefused
			}
			if got := heard(executor.HTTPAnswer{Status: s, Header: http.Header{}}, contract).Verdict; got != want {
				t.Errorf("status %d, contract %t: verdict %d, docs/webhooks.md: %d", s, contract, got, want)
			}
		}
	}
}
