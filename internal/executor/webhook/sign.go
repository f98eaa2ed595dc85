package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/notify"
)

// Headers of a request, as in Standard Webhooks.
const (
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp" // seconds since 1970
	HeaderSignature = "Webhook-Signature" // "v1,BASE64", one for each secret, separated by spaces
	HeaderKey       = "Idempotency-Key"
)

// readSecret reads a secret from its file.
func readSecret(file string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("secret: %w", err)
	}
	secret, err := notify.ParseSecret(string(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return secret, nil
}

func readSecrets(files []string) ([][]byte, error) {
	var out [][]byte
	for _, f := range files {
		s, err := readSecret(f)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// sign returns the signature of a message for one secret.
func sign(secret []byte, id string, at time.Time, body []byte) string {
	h := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(h, "%s.%d.", id, at.Unix())
	_, _ = h.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// signed returns the headers of a request. Without secrets, it has no signature.
func signed(secrets [][]byte, id, key string, at time.Time, body []byte) http.Header {
	var all []string
	for _, s := range secrets {
		all = append(all, sign(s, id, at, body))
	}
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "lofamo-supervisor")
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, strconv.FormatInt(at.Unix(), 10))
	if len(all) > 0 {
		h.Set(HeaderSignature, strings.Join(all, " "))
	}
	h.Set(HeaderKey, key)
	return h
}
