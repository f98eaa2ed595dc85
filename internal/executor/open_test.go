package executor

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lofamo/lofamo/pkg/response"
)

func TestOpenResponsesAreSelected(t *testing.T) {
	list := []*response.Response{{ID: "open"}, {ID: "closed", Closed: time.Unix(1, 0)}, {ID: "another"}}
	want := map[string]bool{"open": true, "closed": false, "forgotten": false}
	if diff := cmp.Diff(want, OpenOf(list, []string{"open", "closed", "forgotten"})); diff != "" {
		t.Error(diff)
	}
}
