package notify

import (
	"slices"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
)

// TestGroupIDsAreBounded: group ids that are too long, or too many, are left out.
func TestGroupIDsAreBounded(t *testing.T) {
	long := "label/" + strings.Repeat("k", 63) + "=" + strings.Repeat("v", 63)
	for _, tc := range []struct{ given, want []string }{
		{nil, nil},
		{[]string{"row/Y=1,Z=2", long, "plane/X=3"}, []string{"row/Y=1,Z=2", "plane/X=3"}},
		{[]string{"a", "b", "c", "d", "e"}, []string{"a", "b", "c", "d"}},
	} {
		got := tellable(tc.given)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.given, got, tc.want)
		}
	}
	if len(long) <= fault.MaxDetail {
		t.Error("the long one is not long")
	}
}
