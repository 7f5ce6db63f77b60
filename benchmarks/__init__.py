"""What is measured, and how: commands of a clone, no part of the package."""
