package configdoc

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChartValuesHaveTheirComments(t *testing.T) {
	got := chartValues(`# About the file.

# name is one of a|b
# or c.
name: "a"
group:
  # labels are the group's.
  labels: {}
    # example: of a label
  size: 1Gi
  # tolerations: all.
  tolerations:
  - operator: Exists
`)
	want := "| `name` | `\"a\"` | name is one of a\\|b or c. |\n" +
		"| `group.labels` | `{}` | labels are the group's. |\n" +
		"| `group.size` | `1Gi` |  |\n" +
		"| `group.tolerations` | `[{operator: Exists}]` | tolerations: all. |\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
