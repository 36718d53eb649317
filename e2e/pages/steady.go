package pages

import "regexp"

type variation struct {
	is    *regexp.Regexp
	stead string
}

// Steady is a text that commands print without what is another one each time: revisions,
// versions, names of pods, addresses, times, the widths of columns, and how often it says what
// it waits for.
func Steady(text string) string {
	for _, v := range []variation{
		{regexp.MustCompile(`sha1:[0-9a-f]{7,40}`), "sha1:COMMIT"},
		{regexp.MustCompile(`\b[0-9a-f]{40}\b`), "COMMIT"},
		{regexp.MustCompile(`\b[0-9a-f]{7}\b`), "COMMIT"},
		{regexp.MustCompile(`\b(v[0-9]+\.[0-9]+\.[0-9]+[-+.0-9A-Za-z]*|devel|[0-9a-f]{12}(-dirty)?)\b`), "VERSION"},
		{regexp.MustCompile(`\b([0-9]+(\.[0-9]+)?(ms|s|m|h))+\b`), "TIME"},
		{regexp.MustCompile(`-[0-9b-df-hj-np-tv-xz]{6,10}-[0-9b-df-hj-np-tv-xz]{5}\b`), "-POD"},
		{regexp.MustCompile(`\b10\.[0-9]+\.[0-9]+\.[0-9]+\b`), "ADDRESS"},
		{regexp.MustCompile(`(?m)(^► waiting for .*\n)+`), "► waiting\n"},
		{regexp.MustCompile(` {2,}`), " "},
		{regexp.MustCompile(`(?m) +$`), ""},
	} {
		text = v.is.ReplaceAllString(text, v.stead)
	}
	return text
}
