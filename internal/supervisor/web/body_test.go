package web

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The error of a request that is too long has the bound, and that of another form has the expected one.
func TestBodyErrorsNameExpectedForm(t *testing.T) {
	for text, want := range map[string]string{
		`{"note": "` + strings.Repeat("x", maxBody) + `"}`: "body: want at most 8192 bytes",
		`{"other": 1}`: "body: want a JSON object with the required fields",
		`{} {}`:        "body: want one JSON object",
	} {
		r := httptest.NewRequest(http.MethodPost, "/api/incidents/a/acknowledge", strings.NewReader(text))
		r.Header.Set("Content-Type", "application/json")
		var in struct{ Note string }
		if err := body(httptest.NewRecorder(), r, &in); err == nil || err.Error() != want {
			t.Errorf("%.20s…: error %v, want %q", text, err, want)
		}
	}
}
