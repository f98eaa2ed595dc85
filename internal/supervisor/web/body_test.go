package web

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// A request of the page that is too long is refused with the bound, and one of another form with what is wanted.
func TestBodyNamesWhatIsWanted(t *testing.T) {
	for text, want := range map[string]string{
		`{"note": "` + strings.Repeat("x", maxBody) + `"}`: "body: want at most 8192 bytes",
		`{"other": 1}`: "body: want a JSON object with the required fields",
		`{} {}`:        "body: want one JSON object",
	} {
		r := httptest.NewRequest("POST", "/api/incidents/a/acknowledge", strings.NewReader(text))
		r.Header.Set("Content-Type", "application/json")
		var in struct{ Note string }
		if err := body(httptest.NewRecorder(), r, &in); err == nil || err.Error() != want {
			t.Errorf("%.20s…: error %v, want %q", text, err, want)
		}
	}
}
