package get

import "testing"

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
