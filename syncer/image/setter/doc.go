// Package setter writes chosen images into YAML files, where comments mark a value with the name of an
// ImagePolicy: image: registry/app:1.0.0 # {"$imagepolicy": "namespace:name"}.
//
// Invariants: nothing changes but the bytes of marked scalars, so that comments, indentation, ends of lines,
// quotes and other documents of a file stay; a file that is changed parses to the same documents as before
// but for these values, which is checked each time; a value that was written is a string to every reader.
//
// Failure model: a file is untrusted. What the guard of package render refuses, what does not parse, and a
// marker on a value that cannot be changed in place are errors, and the file stays as it is. A marker of a
// policy that is not given, and a part that a policy does not have, change nothing. Everything here is pure.
package setter
