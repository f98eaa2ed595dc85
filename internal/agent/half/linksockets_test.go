package half

import (
	"reflect"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestLinkSocketsSurviveEnvironment(t *testing.T) {
	got := ParseLinks(FormatLinks([]grid.Direction{grid.XPlus, grid.ZMinus}))
	if want := map[grid.Direction]int{grid.XPlus: 3, grid.ZMinus: 4}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v: want %v", got, want)
	}
	for _, s := range []string{"", "X+", "X+=", "X+=x", "W+=3", "X+=2", "X+=-1", ",,"} {
		if got := ParseLinks(s); len(got) > 0 {
			t.Errorf("%q: %v", s, got)
		}
	}
}
