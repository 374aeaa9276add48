// TileLang includes rocWMMA everywhere and uses it for RDNA only.
#pragma once
