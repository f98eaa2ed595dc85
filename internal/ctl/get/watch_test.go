package get

import (
	"bytes"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/ctl/command"
)

func TestGapTextSaysWhatWasLost(t *testing.T) {
	for _, tc := range []struct {
		after, until uint64
		want         string
	}{
		{20, 500, "the changes after revision 20 up to revision 500 are lost, the supervisors no longer keep them: the watch goes on after " +
			"revision 500"},
		{500, 20, "the supervisors' store was replaced: it is at revision 20, and the watch was at revision 500: the changes in between are " +
			"lost, the watch goes on after revision 20"},
	} {
		if got := gapText(tc.after, tc.until); got != tc.want {
			t.Errorf("from %d to %d: %q, want %q", tc.after, tc.until, got, tc.want)
		}
	}
}

// TestOnlyWatchWithInitialListSaysThatItFollowsAgain: another watch that has lost changes goes on after them.
func TestOnlyWatchWithInitialListSaysThatItFollowsAgain(t *testing.T) {
	for _, initial := range []bool{true, false} {
		var out bytes.Buffer
		watchProgress(&command.App{Env: command.Env{Stderr: &out}}, initial)("127.0.0.1:7946", client.ErrCompacted)
		if strings.Contains(out.String(), "the whole list follows again") != initial {
			t.Errorf("with initial %t: %q", initial, out.String())
		}
	}
}
