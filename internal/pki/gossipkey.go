package pki

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"strings"

	"github.com/lofamo/lofamo/internal/durable"
)

// gossipKeySize is the length of the gossip rail's key in bytes: AES-256.
const gossipKeySize = 32

// NewGossipKey writes a new key for the gossip rail, 32 random bytes in base64, for its owner only.
func NewGossipKey(file string) error {
	key, err := RandomGossipKey()
	if err != nil {
		return err
	}
	return SaveGossipKeys(file, [][]byte{key})
}

// maxGossipKeys is the maximum number of keys in a file: the one in use, the next, and one more for an interrupted
// change.
const maxGossipKeys = 3

// LoadGossipKeys reads keys that NewGossipKey wrote, each on its own line. The first encrypts; all keys are accepted,
// so that a key can be changed on one machine after the other.
func LoadGossipKeys(file string) ([][]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("gossip key %s: %w", file, reason(err))
	}
	var keys [][]byte
	for i, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
		if err != nil {
			return nil, fmt.Errorf("gossip key %s: line %d: not base64: want %d bytes in base64", file, i+1, gossipKeySize)
		}
		if len(key) != gossipKeySize {
			return nil, fmt.Errorf("gossip key %s: line %d: %d bytes: want %d", file, i+1, len(key), gossipKeySize)
		}
		keys = append(keys, key)
	}
	if len(keys) > maxGossipKeys {
		return nil, fmt.Errorf("gossip key %s: %d keys: want at most %d, the first of which encrypts", file, len(keys), maxGossipKeys)
	}
	return keys, nil
}

// SaveGossipKeys writes keys as LoadGossipKeys reads them, for their owner only.
func SaveGossipKeys(file string, keys [][]byte) error {
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(base64.StdEncoding.EncodeToString(k) + "\n")
	}
	if err := durable.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("write gossip key %s: %w", file, err)
	}
	return nil
}

// RandomGossipKey returns a new key.
func RandomGossipKey() ([]byte, error) {
	key := make([]byte, gossipKeySize)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("new gossip key: %w", err)
	}
	return key, nil
}
